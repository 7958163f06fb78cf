"""Under `surestep run`, PyTorch's own constructor makes the device's generators too."""

import subprocess
import sys

SCRIPT = """
import pickle
import torch

ours, again = torch.Generator(device="xla").manual_seed(2), torch.Generator(torch.device("xla:0")).manual_seed(2)
assert isinstance(ours, torch.Generator) and ours.device == torch.device("xla:0")
assert torch.rand(4, device="xla", generator=ours).tolist() == torch.rand(4, device="xla", generator=again).tolist()
assert pickle.loads(pickle.dumps(ours)).get_offset() == 1

plain = torch.Generator()
assert isinstance(plain, torch.Generator) and isinstance(torch.default_generator, torch.Generator) and plain.device.type == "cpu"
assert issubclass(type(plain), torch.Generator) and not isinstance(3, torch.Generator)
assert pickle.loads(pickle.dumps(plain)).initial_seed() == plain.initial_seed()

class Own(torch.Generator):
    pass

assert type(Own("cpu")) is Own
print("all well")
"""


def test_torch_generator_for_xla(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, "-m", "surestep", "run", str(script)], capture_output=True, text=True)
    assert done.stdout == "all well\n", done.stderr


def test_a_plain_process_is_left_alone():
    program = "import torch\nbefore = torch.Generator\nimport surestep\nprint(torch.Generator is before)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "True\n"
