"""A CUDA device for machines without one: tensors of the CPU that say they are elsewhere and are held to what CUDA allows.

What is checked: an operation takes tensors of one device, host memory is not read through a tensor of the device, and while a
graph is captured nothing waits for the device or copies from the host. A captured graph keeps the very calls that were made, so
that whatever the host decided is baked in as on a GPU; what they gave during capture is poisoned, and a replay makes the calls
again on the same buffers. What is counted: aten calls, waits of the host (values it reads, blocking copies either way, sizes that
depend on values) and graphs. Kernels, their rounding and the clock are the CPU's: this says that a run works, not how fast.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import pytest
import torch
import torch._dynamo  # torch imports it late, and its annotations cannot be read while torch.Generator is replaced
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specviz.engine.to_device import clear_device_caches

DEVICE = torch.device("cuda", 0)
CAPTURING = "operation not permitted when stream is capturing"
READS = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__array__", "numpy"}
"""What hands values to the host."""
WAITS = {
    "aten::nonzero", "aten::masked_select", "aten::is_nonzero", "aten::equal", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::bincount", "aten::multinomial", "aten::_local_scalar_dense",
}  # fmt: skip
"""Operations whose result, or its shape, the host waits for. So does a gather by truth values, or by a list of the host."""
INDEXED = {"__getitem__", "__setitem__", "index_put_"}
FUSED = {
    F.scaled_dot_product_attention, F.linear, F.rms_norm, F.layer_norm, F.embedding, F.silu, F.softmax, F.log_softmax,
    torch.lstm, torch.softmax, torch.log_softmax, Tensor.softmax, Tensor.log_softmax, torch.rms_norm,
}  # fmt: skip
"""One call each on a GPU, of which the CPU makes several."""
DRAWS = {"rand", "randn", "rand_like", "randn_like", "normal_", "uniform_", "randint", "multinomial", "bernoulli"}
"""What a device draws from one seed is not what the host draws from it."""
FROM_HOST = {"tensor", "as_tensor", "asarray", "from_numpy"}
ACROSS = {"copy_", "__getitem__", "__setitem__", "index_put_", "_has_compatible_shallow_copy_type"}
"""Operations that take tensors of the host beside the device's."""


class Placed(Tensor):
    """A tensor on the emulated device."""

    @property
    def device(self) -> torch.device:
        return DEVICE

    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it to the host first.")

    __array__ = numpy

    def __deepcopy__(self, memo: dict[int, Any]) -> Placed:
        return memo.setdefault(id(self), self.detach().clone())


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


@dataclass
class Counts:
    """What was asked of the device. ``calls`` are aten calls outside graphs, ``launches`` those of them that are not mere
    views, ``captured`` the aten calls inside replayed graphs, ``replays`` the graphs, ``waits`` the synchronisations and
    ``reasons`` their causes."""

    calls: int = 0
    launches: int = 0
    captured: int = 0
    replays: int = 0
    captures: int = 0
    waits: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})


class _Tally(TorchDispatchMode):
    """Counts the aten calls of one operation."""

    def __init__(self, device: EmulatedCuda) -> None:
        super().__init__()
        self.device = device
        self.calls = self.launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in WAITS:
            self.device.wait(func._schema.name)
        found = func(*args, **(kwargs or {}))
        self.calls += 1
        self.launches += func._schema.is_mutable or not func.is_view
        return found


def _room(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _spoilt(dtype: torch.dtype) -> float:
    """A number of this kind that nobody means."""
    if dtype.is_floating_point:
        return float("nan")
    return 0 if dtype == torch.bool else min(1 << 30, torch.iinfo(dtype).max)


class Graph:
    """Stands for ``torch.cuda.CUDAGraph``: the calls made while it was captured."""

    def __init__(self, device: EmulatedCuda) -> None:
        self.calls: list[tuple[Callable[[], Any], list[Tensor]]] = []
        self.size = 0
        self.device = device

    def poison(self) -> None:
        """Spoil what capture computed: on a GPU nothing ran, and the memory holds anything."""
        with torch.inference_mode(), torch._C.DisableTorchFunction():
            for _, results in self.calls:
                for tensor in results:
                    tensor.fill_(_spoilt(tensor.dtype))

    def replay(self) -> None:
        self.device.counts.replays += 1
        self.device.counts.captured += self.size
        with torch.inference_mode(), torch._C.DisableTorchFunction():
            for call, results in self.calls:
                made = _tensors(call())
                # None where the call only wrote into what was there.
                for old, new in zip(results, made if results else (), strict=True):
                    old.copy_(new)


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

    wait_event = query = record_event = wait_stream

    def synchronize(self) -> None:
        torch.cuda.synchronize()


class EmulatedCuda(TorchFunctionMode):
    """The device and its ``counts``."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self.graph: Graph | None = None

    def fresh(self) -> Counts:
        """What was counted since the last call of this."""
        counted, self.counts = self.counts, Counts()
        return counted

    def wait(self, reason: str) -> None:
        """The host waits for the device, which a capture refuses."""
        if self.graph is not None:
            raise RuntimeError(f"{reason}: {CAPTURING}")
        self.counts.waits += 1
        self.counts.reasons[reason] += 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = dict(kwargs or {})
        if name in ("__get__", "__deepcopy__"):
            return func(*args, **kwargs)
        if kwargs.pop("pin_memory", False) or name == "pin_memory":
            made = args[0].clone() if name == "pin_memory" else func(*args, **kwargs)
            made.pinned = True
            return made
        if name in ("to", "cuda", "cpu", "type"):
            return self._moved(name, func, args, kwargs)
        given = list(_tensors([*args, kwargs]))
        self._check(name, given, kwargs)
        device = kwargs.pop("device", None)
        away = torch.device(device).type == "cuda" if device is not None else any(isinstance(one, Placed) for one in given)
        if away and name in FROM_HOST:
            self.wait("a blocking copy to the device")
        if name == "copy_" and away and not isinstance(args[0], Placed):
            func(*args, **kwargs)
            return args[0]
        if not away:  # made where it was asked for, on the meta device as well
            return func(*args, **kwargs) if device is None else func(*args, device=device, **kwargs)
        if name in READS:
            self.wait(name)
            return func(*args, **kwargs)
        if name in INDEXED:
            indices = args[1] if isinstance(args[1], tuple) or name == "index_put_" else [args[1]]
            if any(_asks(index) for index in indices):
                self.wait("an index of truth values or of the host")
        if name in DRAWS:
            torch.rand(1)

        def call() -> Any:
            return _mapped(func(*args, **kwargs), _placed)

        return self._called(call, given, func in FUSED)

    def _called(self, call: Callable[[], Any], given: list[Tensor], fused: bool = False) -> Any:
        with _Tally(self) as tally:
            result = call()
        if self.graph is None:
            self.counts.calls += 1 if fused else tally.calls
            self.counts.launches += 1 if fused else tally.launches
        else:
            self.graph.size += 1 if fused else tally.calls
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
        if strangers and not (kwargs.get("non_blocking") and all(getattr(one, "pinned", False) for one in strangers)):
            self.wait(f"{name}: a blocking copy")

    def _moved(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """``to``, ``cuda`` and ``cpu``: a copy where the device changes."""
        tensor, rest = args[0], list(args[1:])
        if name == "type":
            return func(*args, **kwargs)
        waits = not (kwargs.pop("non_blocking", False) and getattr(tensor, "pinned", False))
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
                self.wait(f"{name}: a blocking copy")
            self.counts.calls += not waits
            self.counts.launches += not waits
            return (_placed if there else _plain)(tensor.detach().clone()).to(*rest, **kwargs)
        if not rest and not {"dtype", "copy", "memory_format"} & set(kwargs):
            return tensor
        return self._called(lambda: _mapped(func(tensor, *rest, **kwargs), _placed if here else _plain), [tensor])

    @contextlib.contextmanager
    def capture(self, graph: Graph, *args: Any, **options: Any) -> Iterator[None]:
        self.counts.captures += 1
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


def _asks(index: Any) -> bool:
    """Whether an index says only by its values how much it names, or lies on the host."""
    return isinstance(index, list) or isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


@contextlib.contextmanager
def emulated_cuda() -> Iterator[EmulatedCuda]:
    """The device, for as long as the block lasts and in this thread."""
    device = EmulatedCuda()
    clear_device_caches()  # what is kept by this name lies elsewhere

    @contextlib.contextmanager
    def nothing(*args: Any, **options: Any) -> Iterator[None]:
        yield

    stand_ins: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *args: "emulated CUDA",
        "is_bf16_supported": lambda *args, **options: True,
        "synchronize": lambda *args: device.wait("torch.cuda.synchronize"),
        "current_stream": lambda *args: Stream(),
        "stream": nothing,
        "device": nothing,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": lambda **options: Graph(device),
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
        clear_device_caches()
        torch.__future__.set_overwrite_module_params_on_conversion(before)
