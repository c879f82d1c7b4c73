"""The device that only counts: it computes what the CPU does, and every wait of the host is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from specviz.engine.captured import Captured
from specviz.engine.to_device import to_device
from tests.support.counting_device import CaptureFailed, CountingDevice, OnDevice

CUDA = torch.device("cuda")


@pytest.fixture
def device() -> Iterator[CountingDevice]:
    with CountingDevice().present() as counting:
        yield counting


def test_numbers_are_the_cpus_and_calls_are_counted(device: CountingDevice) -> None:
    here = to_device([3, 1, 2], CUDA)
    device.fresh()
    there = (here + 1)[1:]
    counted = device.fresh()
    assert isinstance(there, OnDevice) and there.device.type == "cuda" and there.inner.tolist() == [2, 3]
    assert (counted.calls, counted.launches, counted.waits) == (2, 1, 0)  # a slice is a view, which nothing is launched for


def test_a_view_writes_where_its_tensor_is(device: CountingDevice) -> None:
    whole = torch.zeros(3, 4, device="cuda")
    whole[1, 2:] = 5.0
    whole.diagonal(1)[:2].fill_(7.0)
    assert whole.inner.tolist() == [[0, 7, 0, 0], [0, 0, 7, 5], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    "wait",
    [
        lambda here: here.tolist(),
        lambda here: int(here[0]),
        lambda here: bool((here > 1).any()),
        lambda here: here.cpu(),
        lambda here: here[here > 1],
        lambda here: here[[0, 1]],
        lambda here: here.nonzero(),
        lambda here: torch.tensor([1.0], device="cuda"),
        lambda here: torch.ones(3).to("cuda"),
        lambda here: torch.cuda.synchronize(),
    ],
)  # fmt: skip
def test_whatever_makes_the_host_wait_is_told(device: CountingDevice, wait: object) -> None:
    here = to_device([3, 1, 2], CUDA)
    device.fresh()
    assert callable(wait)
    wait(here)
    assert device.fresh().waits == 1


def test_pinned_copies_do_not_wait(device: CountingDevice) -> None:
    here = to_device([3, 1, 2], CUDA)
    host = torch.empty(3, dtype=torch.long, pin_memory=True)
    host.copy_(here, non_blocking=True)
    counted = device.fresh()
    assert host.tolist() == [3, 1, 2] and counted.waits == 0


def test_a_tensor_on_the_host_among_the_devices_is_refused_as_cuda_does(device: CountingDevice) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        to_device([1, 2], CUDA) + torch.ones(2)


def test_a_graph_computes_anew_from_the_same_places_and_knows_host_numbers_as_they_were(device: CountingDevice) -> None:
    given, factor = torch.ones(3, device="cuda"), 2.0
    graph = Captured(lambda: given * factor + 1, CUDA)
    first = graph()
    assert first.inner.tolist() == [3, 3, 3]
    given.fill_(5.0)
    factor = 100.0
    device.fresh()
    assert graph() is first and first.inner.tolist() == [11, 11, 11]
    counted = device.fresh()
    assert (counted.calls, counted.replays, counted.captured) == (0, 1, 2)


def test_no_graph_is_captured_over_a_wait(device: CountingDevice) -> None:
    given = torch.ones(3, device="cuda")
    with pytest.raises(CaptureFailed, match="captured"):
        Captured(lambda: given * float(given[0]), CUDA)()
