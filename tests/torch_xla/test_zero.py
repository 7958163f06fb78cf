"""ZeroRedundancyOptimizer against one process on whole batches."""

import pytest
import torch
from torch import nn

from parallel.processes import ranks
from surestep.observe.events import Cause
from surestep.torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer
from torch_xla import fsdp_jobs as jobs

CASES = [
    ("mlp", {"max_norm": 0.3}, "step"),
    ("cnn", {"grad_clipping": False, "use_grad_acc_hook": True, "higher_cc_precision": True}, "plain"),
    ("transformer", {"max_norm": 0.3, "save_master_weights": True, "grad_norm_groups": [[0], [1]]}, "saved"),
]


def test_it_is_one_process_on_the_whole_batch(tmp_path):
    first, second = ranks(jobs.zero, CASES, tmp_path, directory=tmp_path)
    for (kind, options, style), a, b in zip(CASES, first, second, strict=True):
        # grad_norm_groups count the norm once more for each in a group: of one process, that is once
        expected, norms = jobs.alone(kind, (0.3, 2.0) if options.get("grad_clipping", True) else None)
        for name, value in expected.items():
            ours = a["state"][name]
            torch.testing.assert_close(ours, value, rtol=1e-4, atol=1e-5, msg=lambda text, case=(kind, style, name): f"{case}: {text}")
            assert torch.equal(ours, b["state"][name])
        assert a["norms"] == pytest.approx(norms, rel=1e-4)
        counts = dict(a["counts"])
        assert counts.pop(Cause.OPTIMIZER_STEP if style == "plain" else Cause.STEP) == jobs.steps(kind)
        assert style == "saved" or counts == {Cause.REPLICAS: 3}  # each step is one run of one program
        for whole, state in a["shapes"]:
            assert state == (-(-whole[0] // 2), *whole[1:])


class TestOneProcess:
    def model(self):
        return nn.Linear(3, 2).to("xla")

    def test_settings(self):
        model = self.model()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1, weight_decay=0.5)
        assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        model(torch.ones(1, 3, device="xla")).sum().backward()
        assert optimizer.step(lambda: "the loss") == "the loss"
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.05
        optimizer.step()
        assert optimizer.base_optimizer.param_groups[0]["lr"] == 0.05
        optimizer.zero_grad()
        assert model.weight.grad is None

    def test_lazy_init(self):
        optimizer = ZeroRedundancyOptimizer(self.model().parameters(), torch.optim.SGD, lazy_init=True, lr=0.1)
        with pytest.raises(RuntimeError, match=r"call init_zero\(\) before the first step"):
            optimizer.step()
        optimizer.sharding_groups = [[0]]
        optimizer.init_zero()
        with pytest.raises(RuntimeError, match="sharded already"):
            optimizer.sharding_groups = [[0]]
        with pytest.raises(NotImplementedError, match="give all groups when it is made"):
            optimizer.add_param_group({"params": []})

    def test_wrong_ones(self):
        with pytest.raises(ValueError, match=r"a parameter on cpu: move the model to the device first"):
            ZeroRedundancyOptimizer(nn.Linear(3, 2).parameters(), torch.optim.SGD, lr=0.1)
        parameters = list(self.model().parameters())
        for wrong in ("AdamW", torch.optim.SGD(parameters, lr=0.1)):
            with pytest.raises(TypeError, match=r"a class, of which the optimizer of the parts is made. Write .*torch.optim.AdamW, lr="):
                ZeroRedundancyOptimizer(parameters, wrong, lr=0.1)
        for options, message in (
            ({"max_norm": "a"}, "max_norm='a': a number"),
            ({"optimizer_dtype": "half"}, "optimizer_dtype='half': a dtype"),
        ):
            with pytest.raises(TypeError, match=message):
                ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1, **options)
        with pytest.raises(ValueError, match="name replicas that aren't there"):
            ZeroRedundancyOptimizer(self.model().parameters(), torch.optim.SGD, sharding_groups=[[0, 1]], lr=0.1)
        state = ZeroRedundancyOptimizer(self.model().parameters(), torch.optim.SGD, lr=0.1).state_dict()
        other = ZeroRedundancyOptimizer(nn.Linear(4, 2).to("xla").parameters(), torch.optim.SGD, lr=0.1)
        with pytest.raises(ValueError, match="the state is that of parameters of the shapes"):
            other.load_state_dict(state)
