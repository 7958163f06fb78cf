"""The loaders: batches on the device, in order, with a boundary before each, and no thread left behind."""

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections import namedtuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import surestep
from surestep.loop.loader import MpDeviceLoader, ParallelLoader, to_device
from surestep.torch_xla.utils.utils import SampleGenerator

Sample = namedtuple("Sample", "image label")


def numbers(count, batch_size=1, **options):
    return DataLoader(TensorDataset(torch.arange(float(count))), batch_size=batch_size, **options)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "surestep loader"]


def wait_for_no_thread():
    end = time.monotonic() + 5
    while threads() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    return threads() == []


def test_batches_come_in_order_on_the_device():
    loader = MpDeviceLoader(numbers(10, batch_size=4), "xla")
    found = [batch for (batch,) in loader]
    assert [batch.device.type for batch in found] == ["xla"] * 3
    assert [batch.tolist() for batch in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(loader) == 3
    assert wait_for_no_thread()


def test_it_can_be_iterated_again():
    loader = MpDeviceLoader(numbers(3), "xla")
    assert [[batch.item() for (batch,) in loader] for _ in range(2)] == [[0, 1, 2], [0, 1, 2]]


def test_made_up_samples_are_as_many_as_they_say():
    samples = SampleGenerator((torch.ones(1),), 5)
    assert len(list(MpDeviceLoader(samples, "xla"))) == len(list(MpDeviceLoader(samples, "xla"))) == 5
    assert list(MpDeviceLoader([], "xla")) == []


def test_nested_batches():
    one = torch.ones(1)
    moved = to_device({"sample": Sample(one, [one, "name"]), "count": 3, "packed": pack_sequence([one])}, torch.device("xla"))
    assert moved["sample"].image.device.type == "xla"
    assert moved["sample"].label[0].device.type == "xla" and moved["sample"].label[1] == "name"
    assert moved["count"] == 3
    assert moved["packed"].data.device.type == "xla" and moved["packed"].batch_sizes.device.type == "cpu"


def test_a_boundary_before_each_batch(metrics):
    total = torch.zeros(1, device="xla")
    for (batch,) in MpDeviceLoader(numbers(3), "xla"):
        total = total + batch
    assert metrics().to_dict()["boundaries"] == {"loader's next batch": 4}  # before the first, between, and at the end
    assert total.item() == 3
    assert metrics().run.count == 4
    assert metrics().implicit.total() == 0


def test_a_boundary_every_few_batches(metrics):
    total = torch.zeros(1, device="xla")
    surestep.sync()
    surestep.clear_metrics()
    for (batch,) in MpDeviceLoader(numbers(6), "xla", batches_per_execution=3):
        total = total + batch
    assert metrics().to_dict()["boundaries"] == {"loader's next batch": 2}
    assert total.item() == 15


def test_a_boundary_every_zero_batches_is_said():
    with pytest.raises(ValueError, match="batches_per_execution=0: there is a boundary every so many batches, from 1 on"):
        iter(MpDeviceLoader([torch.ones(1)], "xla", batches_per_execution=0))


def test_none_inside_a_step(metrics):
    loader = iter(MpDeviceLoader(numbers(3), "xla"))
    with surestep.step():
        total = sum(batch for (batch,) in loader)
    assert metrics().to_dict()["boundaries"] == {"end of step()": 1}
    assert total.item() == 3


def test_three_steps_are_one_program(metrics):
    parameter = torch.nn.Parameter(torch.ones(1, device="xla"))
    surestep.sync()
    surestep.clear_metrics()
    for (batch,) in MpDeviceLoader(numbers(3), "xla"):
        with surestep.step():
            (parameter * batch).sum().backward()
            with torch.no_grad():
                parameter -= 0.5 * parameter.grad
            parameter.grad = None
    assert (metrics().compile.count, metrics().run.count, metrics().transfer_out.count) == (1, 3, 0)
    assert parameter.item() == 1 - 0.5 * 3


def test_a_loop_without_step_is_one_program_a_batch_too(metrics):
    """MpDeviceLoader and optimizer_step alone, as scripts for torch_xla have it."""
    model = torch.nn.Linear(1, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    surestep.clear_metrics()
    for batch in MpDeviceLoader(numbers(6, batch_size=2), "xla"):
        optimizer.zero_grad()
        model(batch[0].unsqueeze(1)).square().sum().backward()
        surestep.optimizer_step(optimizer)
    assert metrics().run.count == 3 and metrics().steps == 3 and metrics().transfer_out.count == 0


class Broken(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2:
            raise KeyError("no such sample")
        return torch.ones(1)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_datasets_error_is_raised_in_the_loop(workers):
    seen = []
    with pytest.raises(KeyError, match="no such sample"):
        for batch in MpDeviceLoader(DataLoader(Broken(), num_workers=workers), "xla"):
            seen.append(batch)
    assert len(seen) == 2
    assert wait_for_no_thread()


def test_an_early_break_leaves_no_thread():
    for (batch,) in MpDeviceLoader(numbers(100), "xla"):
        if batch.item() == 1:
            break
    assert wait_for_no_thread()


def test_closing_ends_the_thread():
    loader = iter(MpDeviceLoader(numbers(100), "xla"))
    next(loader)
    assert threads()
    loader.close()
    end = time.monotonic() + 5
    while threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert threads() == []


def test_shuffling_follows_the_seed_as_without_it():
    def order(wrap):
        torch.manual_seed(5)
        return [batch.item() for (batch,) in wrap(numbers(20, shuffle=True))]

    assert order(lambda loader: MpDeviceLoader(loader, "xla")) == order(lambda loader: loader)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(lambda: torch.ones(1), None)


def test_an_endless_dataset_is_read_a_little_ahead():
    loader = MpDeviceLoader(DataLoader(Endless()), "xla", device_prefetch_size=2)
    batches = iter(loader)
    assert next(batches).item() == 1
    batches.close()


def test_what_the_loader_has_is_had_here():
    inner = numbers(10, batch_size=5)
    loader = MpDeviceLoader(inner, "xla")
    assert loader._loader is inner
    assert loader.batch_size == 5 and loader.dataset is inner.dataset and loader.sampler is inner.sampler
    with pytest.raises(AttributeError, match="nothing_like_it"):
        loader.nothing_like_it


def test_it_can_be_subclassed():
    class Counted(MpDeviceLoader):
        total_batch_size = 8

        def __iter__(self):
            self.begun = getattr(self, "begun", 0) + 1
            return super().__iter__()

    loader = Counted(numbers(2), torch.device("xla"))
    assert [batch.item() for (batch,) in loader] == [0, 1]
    assert loader.begun == 1 and loader.total_batch_size == 8


def test_parallel_loader_over_one_device():
    parallel = ParallelLoader(numbers(3), [torch.device("xla", 0)])
    batches = parallel.per_device_loader(torch.device("xla", 0))
    assert len(batches) == 3
    assert [batch.item() for (batch,) in batches] == [0, 1, 2]


def test_a_device_that_gets_no_batches_is_an_error():
    parallel = ParallelLoader(numbers(3), [torch.device("xla", 0)])
    with pytest.raises(ValueError, match=r"per_device_loader\('xla:1'\): this ParallelLoader's batches go to \['xla:0'\]"):
        parallel.per_device_loader("xla:1")
    parallel.close()


def test_parallel_loader_over_two_devices():
    """Batches are dealt in turn, and an incomplete round is left out."""
    code = """
import json, torch, surestep
from surestep.loop.loader import ParallelLoader
parallel = ParallelLoader([torch.full((1,), float(number)) for number in range(5)], surestep.devices())
print(json.dumps([[[str(batch.device), batch.item()] for batch in parallel.per_device_loader(device)] for device in surestep.devices()]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "CPU_NUM_DEVICES": "2"})
    assert json.loads(done.stdout) == [[["xla:0", 0], ["xla:0", 2]], [["xla:1", 1], ["xla:1", 3]]]
