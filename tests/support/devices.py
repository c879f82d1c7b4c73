"""The devices that a test body runs on: this CPU, a CUDA device that is emulated on it, and a real one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from tests.support.emulated_cuda import emulated_cuda

CPU, EMULATED, CUDA = "cpu", "emulated", "cuda"
DEVICES = (CPU, EMULATED, pytest.param(CUDA, marks=pytest.mark.gpu))


@contextlib.contextmanager
def device_named(name: str) -> Iterator[str]:
    """What torch calls the device, for as long as it is there. The emulated one has the name of the real one."""
    if name != EMULATED:
        yield name
        return
    if torch.cuda.is_available():
        pytest.skip("a real CUDA device is here")
    with emulated_cuda():
        yield "cuda"
