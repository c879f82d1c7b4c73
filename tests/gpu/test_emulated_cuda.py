"""The emulated device refuses what CUDA refuses, and a replay knows no more than a graph does."""

import pytest
import torch
from torch import nn

from specviz.engine.to_device import to_device
from tests.support.devices import EMULATED, device_named
from tests.support.emulated_cuda import emulated_cuda

CUDA = torch.device("cuda")


@pytest.fixture
def emulated():
    with device_named(EMULATED):
        pass  # skipped where a real one is
    with emulated_cuda() as device:
        yield device


def test_tensors_of_two_devices_do_not_meet(emulated):
    there, here = torch.ones(3, device="cuda"), torch.ones(3)
    assert str(there.device) == "cuda:0" and there.is_cuda and not here.is_cuda
    for meeting in (lambda: there + here, lambda: torch.cat([there, here]), lambda: nn.Linear(3, 3)(there)):
        with pytest.raises(RuntimeError, match="same device"):
            meeting()
    assert (there + torch.tensor(1.0)).tolist() == [2.0] * 3, "a number is welcome everywhere"
    assert (there.cpu() + here).tolist() == [2.0] * 3 and nn.Linear(3, 3).to("cuda")(there).is_cuda
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()


def test_what_is_made_for_another_device_is_made_there(emulated):
    """Loaders build a model on the meta device first, and fill only what they find there."""
    with torch.device("meta"):
        room = torch.zeros(3)
    assert room.device.type == torch.empty_like(room).device.type == "meta"
    emulated.fresh()
    assert torch.zeros(3, device="cpu").device.type == "cpu" and emulated.fresh().calls == 0


WAITS = {
    "list": lambda there: there.tolist(), "item": lambda there: there.sum().item(), "number": lambda there: int(there[0]),
    "truth": lambda there: bool((there > 1).any()), "truths": lambda there: there[there > 1],
    "a list": lambda there: there[[0, 1]],
    "to the host": lambda there: there.cpu(), "from the host": lambda there: there.copy_(torch.ones(3)),
    "places": lambda there: there.nonzero(), "made there": lambda there: torch.tensor([1.0], device="cuda"),
    "not pinned": lambda there: torch.ones(3).to("cuda", non_blocking=True), "all": lambda there: torch.cuda.synchronize(),
}  # fmt: skip


@pytest.mark.parametrize("wait", WAITS.values(), ids=list(WAITS))
def test_what_makes_the_host_wait_is_counted_and_refused_in_a_capture(emulated, wait):
    there = to_device([3, 1, 2], CUDA)
    emulated.fresh()
    wait(there)
    assert emulated.fresh().waits == 1
    with pytest.raises(RuntimeError, match="not permitted"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        wait(there)


def test_calls_are_counted_and_pinned_copies_do_not_wait(emulated):
    there = to_device([3, 1, 2], CUDA)
    host = torch.empty(3, dtype=torch.long, pin_memory=True)
    host.copy_(there, non_blocking=True)
    assert emulated.fresh().waits == 0 and host.tolist() == [3, 1, 2]
    assert (there + 1)[1:].is_cuda
    counted = emulated.fresh()
    assert (counted.calls, counted.launches, counted.waits) == (2, 1, 0), "nothing is launched for a view"


def test_a_replay_reads_the_buffers_anew_and_keeps_what_the_host_decided(emulated):
    x, out, scale = torch.ones(2, device="cuda"), torch.zeros(2, device="cuda"), 3
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        fresh = x * scale
        out.copy_(fresh)
    assert fresh.isnan().all(), "nothing was computed during capture"
    scale = 5
    x.fill_(2.0)
    graph.replay()
    assert fresh.tolist() == out.tolist() == [6.0, 6.0]
    counted = emulated.fresh()
    assert (counted.captures, counted.replays, counted.captured) == (1, 1, 2)


def test_memory_is_what_something_still_holds(emulated):
    before = torch.cuda.memory_allocated()
    held = torch.zeros(1000, device="cuda")
    assert torch.cuda.memory_allocated() - before == held.element_size() * 1000
    del held
    assert torch.cuda.memory_allocated() == before
