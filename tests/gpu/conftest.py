"""Tests here that ask for ``device`` run on this CPU, on an emulated CUDA device and, in the lane ``gpu``, on a real one."""

import pytest

from tests.support.devices import DEVICES, device_named


@pytest.fixture(params=DEVICES)
def device(request):
    """What torch calls the device."""
    with device_named(request.param) as name:
        yield name
