"""A CUDA device for machines without one: tensors of the CPU that say they are elsewhere and are held to what CUDA allows.

What is checked: an operation takes tensors of one device, host memory is not read through a tensor of the device, and while a
graph is captured nothing waits for the device or copies from the host. A captured graph keeps the very calls that were made, so
that whatever the host decided is baked in as on a GPU; what they gave during capture is poisoned, and a replay makes the calls
again on the same buffers. Kernels, their rounding and the clock are the CPU's: this says that a run works, not how fast.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from specviz.engine.to_device import forget

DEVICE = torch.device("cuda", 0)
CAPTURING = "operation not permitted when stream is capturing"
READS = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "masked_select", "unique", "equal"}
"""Operations whose result, or its shape, the host waits for."""
DRAWS = {"rand", "randn", "rand_like", "randn_like", "normal_", "uniform_", "randint", "multinomial", "bernoulli"}
"""What a device draws from one seed is not what the host draws from it."""
FROM_HOST = {"tensor", "as_tensor", "asarray", "from_numpy"}
ACROSS = {"copy_", "__getitem__", "__setitem__", "index_put_", "_has_compatible_shallow_copy_type"}
"""Operations that take tensors of the host beside the device's."""


class Placed(Tensor):
    """A tensor on the emulated device."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it to the host first.")

    __array__ = numpy


def _placed(tensor: Any) -> Any:
    return tensor.as_subclass(Placed) if isinstance(tensor, Tensor) and not isinstance(tensor, Placed) else tensor


def _plain(tensor: Any) -> Any:
    return tensor.as_subclass(Tensor) if isinstance(tensor, Placed) else tensor


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments or results, lists and dictionaries looked through."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))


def _mapped(values: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(values, list | tuple) and next(_tensors(values), None) is not None:
        return type(values)([_mapped(value, change) for value in values])
    return change(values)


def _room(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _spoilt(dtype: torch.dtype) -> float:
    """A number of this kind that nobody means."""
    if dtype.is_floating_point:
        return float("nan")
    return 0 if dtype == torch.bool else min(1 << 30, torch.iinfo(dtype).max)


class Graph:
    """Stands for ``torch.cuda.CUDAGraph``: the calls made while it was captured."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[[], Any], list[Tensor]]] = []
        self.replays = 0

    def poison(self) -> None:
        """Spoil what capture computed: on a GPU nothing ran, and the memory holds anything."""
        with torch.inference_mode(), torch._C.DisableTorchFunction():
            for _, results in self.calls:
                for tensor in results:
                    tensor.fill_(_spoilt(tensor.dtype))

    def replay(self) -> None:
        self.replays += 1
        with torch.inference_mode(), torch._C.DisableTorchFunction():
            for call, results in self.calls:
                for old, new in zip(results, _fresh_of(call(), results), strict=True):
                    old.copy_(new)


def _fresh_of(result: Any, results: list[Tensor]) -> list[Tensor]:
    """Those of a repeated call's results that stand for ``results``: none where it only wrote into what was there."""
    return list(_tensors(result)) if results else []


class Event:
    """Stands for ``torch.cuda.Event``, on the host's clock."""

    def __init__(self, enable_timing: bool = False, **options: Any) -> None:
        self.at = 0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter_ns()

    def elapsed_time(self, other: Event) -> float:
        return (other.at - self.at) / 1e6

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    wait = synchronize


class Stream:
    """Stands for ``torch.cuda.Stream``; whatever is sent to it has run when the call returns."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.device = DEVICE

    def wait_stream(self, other: Any) -> None:
        return None

    synchronize = wait_event = query = record_event = wait_stream


class EmulatedCuda(TorchFunctionMode):
    """The device. ``waits`` counts how often the host waited for it, ``captures`` how many graphs were captured."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = self.captures = 0
        self.graph: Graph | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = dict(kwargs or {})
        if name == "__get__":
            return func(*args, **kwargs)
        kwargs.pop("pin_memory", None)
        if name == "pin_memory":
            return args[0]
        if name in ("to", "cuda", "cpu", "type"):
            return self._moved(name, func, args, kwargs)
        given = list(_tensors([*args, kwargs]))
        self._check(name, given, kwargs)
        device = kwargs.pop("device", None)
        away = torch.device(device).type == "cuda" if device is not None else any(isinstance(one, Placed) for one in given)
        if away and name in FROM_HOST and self.graph is not None:
            raise RuntimeError(f"{name}: {CAPTURING}")
        change = _placed if away else _plain
        if not away and (device is None or func not in _device_constructors()):
            return func(*args, **kwargs) if device is None else func(*args, device=device, **kwargs)
        if name in READS and away:
            return self._read(name, func, args, kwargs)

        if away and name in DRAWS:
            torch.rand(1)

        def call() -> Any:
            return _mapped(func(*args, **kwargs), change)

        return self._called(call, given)

    def _called(self, call: Callable[[], Any], given: list[Tensor]) -> Any:
        result = call()
        if self.graph is not None:
            rooms = {_room(one) for one in given}
            fresh = [one for one in _tensors(result) if _room(one) not in rooms]
            assert not fresh or len(fresh) == len(list(_tensors(result)))
            self.graph.calls.append((call, fresh))
        return result

    def _check(self, name: str, given: list[Tensor], kwargs: dict[str, Any]) -> None:
        away = [isinstance(one, Placed) for one in given]
        if not any(away) or all(away):
            return
        strangers = [one for one in given if not isinstance(one, Placed) and one.ndim]
        if strangers and name not in ACROSS:
            raise RuntimeError(f"{name}: expected all tensors to be on the same device, found cuda:0 and cpu")
        if strangers and not kwargs.get("non_blocking"):
            self._wait(name)

    def _wait(self, name: str) -> None:
        if self.graph is not None:
            raise RuntimeError(f"{name}: {CAPTURING}")
        self.waits += 1

    def _read(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        self._wait(name)
        return func(*args, **kwargs)

    def _moved(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """``to``, ``cuda`` and ``cpu``: a copy where the device changes."""
        tensor, rest = args[0], list(args[1:])
        if name == "type":
            return func(*args, **kwargs)
        waits = not kwargs.pop("non_blocking", False)
        device: Any = kwargs.pop("device", None)
        if name in ("cuda", "cpu"):
            device, rest = name, []
        elif rest and isinstance(rest[0], Tensor):
            other = rest[0]
            device, rest = other.device, [other.dtype, *rest[1:]]
        elif rest and isinstance(rest[0], str | torch.device | int):
            device, rest = rest[0], rest[1:]
        here = isinstance(tensor, Placed)
        there = here if device is None else torch.device(device).type == "cuda"
        rest = [one for one in rest if isinstance(one, torch.dtype)]
        if here != there:
            if waits or self.graph is not None:
                self._wait(name)
            return (_placed if there else _plain)(tensor.detach().clone()).to(*rest, **kwargs)
        if not rest and not {"dtype", "copy", "memory_format"} & set(kwargs):
            return tensor
        return self._called(lambda: _mapped(func(tensor, *rest, **kwargs), _placed if here else _plain), [tensor])

    @contextlib.contextmanager
    def capture(self, graph: Graph, *args: Any, **options: Any) -> Iterator[None]:
        self.captures += 1
        self.graph = graph
        try:
            yield
        finally:
            self.graph = None
        graph.poison()

    def memory(self, *args: Any) -> int:
        """Bytes of every tensor on the device that something still holds."""
        rooms = {_room(one): one.untyped_storage().nbytes() for one in gc.get_objects() if type(one) is Placed}
        return sum(rooms.values())


@contextlib.contextmanager
def emulated_cuda() -> Iterator[EmulatedCuda]:
    """The device, for as long as the block lasts and in this thread."""
    device = EmulatedCuda()
    forget()  # what is kept by this name lies elsewhere

    @contextlib.contextmanager
    def nothing(*args: Any, **options: Any) -> Iterator[None]:
        yield

    stand_ins: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *args: "emulated CUDA",
        "is_bf16_supported": lambda *args, **options: True,
        "synchronize": lambda *args: None,
        "current_stream": lambda *args: Stream(),
        "stream": nothing,
        "device": nothing,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": device.capture,
        "graph_pool_handle": lambda: (0, 1),
        "is_current_stream_capturing": lambda: device.graph is not None,
        "memory_allocated": device.memory,
        "empty_cache": lambda: None,
        "mem_get_info": lambda *args: (1 << 36, 1 << 36),
    }
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with pytest.MonkeyPatch.context() as patch, device:
            for name, stand_in in stand_ins.items():
                patch.setattr(torch.cuda, name, stand_in)
            patch.setattr(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
            generator = torch.Generator
            patch.setattr(torch, "Generator", lambda place="cpu": generator())
            yield device
    finally:
        forget()
        torch.__future__.set_overwrite_module_params_on_conversion(before)
