"""CUDA as the program sees it, computed on the CPU: every aten call, synchronisation and captured graph is counted.

A tensor of this device says that it is on ``cuda``, so the code takes the paths that it takes on a GPU; its numbers lie on the
CPU, in ``inner``. Whatever would make the host wait for the device is counted as a synchronisation, and refused while a graph
is captured, as CUDA does: values read by the host, blocking copies in either direction, sizes that depend on values. A captured
graph is replayed from its recorded operations over the same memory, so a value that the host put into it while it was captured
stays what it was then. What this cannot tell is time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from specviz.engine.to_device import forget
from specviz.errors import SpecvizError

DEVICE = torch.device("cuda", 0)
_WAITS = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::is_nonzero", "aten::equal", "aten::_unique2",
    "aten::unique_dim", "aten::unique_consecutive", "aten::bincount", "aten::repeat_interleave", "aten::multinomial",
}  # fmt: skip
"""Operations whose result, or its size, the host has to know."""
_READS = {
    Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.item, Tensor.__int__, Tensor.__float__, Tensor.__bool__,
    Tensor.__index__,
}  # fmt: skip
_GUARDED = {
    Tensor.nonzero: torch.ops.aten.nonzero.default, torch.nonzero: torch.ops.aten.nonzero.default,
    Tensor.__invert__: torch.ops.aten.bitwise_not.default, Tensor.contiguous: torch.ops.aten.contiguous.default,
}  # fmt: skip
"""Python's own way to these asks for a CUDA guard, which a build without CUDA lacks."""
_FUSED = {
    F.scaled_dot_product_attention, F.linear, F.rms_norm, F.layer_norm, F.embedding, F.silu, F.softmax, F.log_softmax,
    torch.lstm, torch.softmax, torch.log_softmax, Tensor.softmax, Tensor.log_softmax, torch.rms_norm,
}  # fmt: skip
"""One call each on a GPU, which the CPU would see in parts."""


@dataclass
class Counts:
    """What was asked of the device. ``calls`` are aten calls outside graphs, ``launches`` those of them that are not mere
    views, ``captured`` the aten calls inside replayed graphs, ``replays`` the graphs, ``waits`` the synchronisations."""

    calls: int = 0
    launches: int = 0
    captured: int = 0
    replays: int = 0
    captures: int = 0
    uploads: int = 0
    waits: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})


class CaptureFailed(SpecvizError):
    """The host waited for the device while a graph was captured."""


class OnDevice(Tensor):
    """A tensor that says it is on the device; its numbers are ``inner``'s."""

    inner: Tensor
    __slots__ = ["inner"]

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, inner.size(), **layout, device=DEVICE)
        made.inner = inner
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"OnDevice({self.inner!r})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = CountingDevice.current()
        if func in _READS:
            device.wait(func.__name__)
            return func(args[0].inner, *args[1:], **kwargs)
        if func is Tensor.data_ptr:
            return args[0].inner.data_ptr()
        if func is Tensor.pin_memory:
            raise SpecvizError("Only a tensor on the host can be pinned.")
        if func is Tensor.__getitem__:
            return _item(args[0], args[1])
        if func is Tensor.__setitem__:
            return _set_item(args[0], args[1], args[2])
        if func is Tensor.copy_:
            device.dispatch(torch.ops.aten.copy_.default, args, kwargs)
            return args[0]
        if func in _GUARDED:
            return _GUARDED[func](*args, **kwargs)
        if func in _FUSED:
            return device.call(f"fused::{func.__name__}", func, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return CountingDevice.current().dispatch(func, args, kwargs or {})


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, OnDevice) else value


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _sliced(tensor: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]]:
    """The views that an index names, and its tensors by dimension. Python's own indexing would ask for a CUDA guard, which
    a build without CUDA lacks."""
    parts = list(index) if isinstance(index, tuple) else [index]
    named = sum(part is not None and part is not Ellipsis for part in parts)
    place, tensors = 0, []
    for part in parts:
        if part is Ellipsis:
            place += tensor.dim() - place - (named - sum(one is not None for one in tensors[place:]))
            tensors += [None] * (place - len(tensors))
            continue
        named -= part is not None
        if part is None:
            tensor = tensor.unsqueeze(place)
        elif isinstance(part, slice):
            if part != slice(None):
                start, end, step = part.indices(tensor.shape[place])
                tensor = torch.ops.aten.slice.Tensor(tensor, place, start, max(start, end), step)
        elif isinstance(part, bool):
            raise TypeError("this device takes no index that is a bool")
        elif isinstance(part, int) or (isinstance(part, Tensor) and not part.dim() and part.dtype != torch.bool):
            tensor = torch.ops.aten.select.int(tensor, place, int(part))  # a tensor without dimensions is read by the host
            continue
        else:
            tensors.append(part if isinstance(part, Tensor) else torch.tensor(part))
            place += tensors[-1].dim() if tensors[-1].dtype == torch.bool else 1
            continue
        tensors.append(None)
        place += 1
    return tensor, tensors


def _item(tensor: Tensor, index: Any) -> Tensor:
    view, tensors = _sliced(tensor, index)
    return torch.ops.aten.index.Tensor(view, tensors) if any(one is not None for one in tensors) else view


def _set_item(tensor: Tensor, index: Any, value: Any) -> None:
    view, tensors = _sliced(tensor, index)
    if any(one is not None for one in tensors):
        value = value if isinstance(value, Tensor) else torch.tensor(value, dtype=view.dtype)
        torch.ops.aten.index_put_(view, tensors, value)
    elif isinstance(value, Tensor):
        view.copy_(value.reshape(value.shape[value.dim() - view.dim() :]) if value.dim() > view.dim() else value)
    else:
        view.fill_(value)


@dataclass
class _Recorded:
    """One operation of a graph: what to run again, and where its results have to be."""

    run: Callable[..., Any]
    args: Any
    kwargs: Any
    results: list[Tensor]


class Graph:
    """Stands in for ``torch.cuda.CUDAGraph``."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.recorded: list[_Recorded] = []

    def replay(self) -> None:
        """Run every recorded operation again, over the same memory."""
        device = CountingDevice.current()
        device.counts.replays += 1
        device.counts.captured += len(self.recorded)
        for one in self.recorded:
            found = one.run(*one.args, **one.kwargs)
            for old, new in zip(one.results, _tensors(found), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    def pool(self) -> tuple[int, int]:
        """The memory that graphs share; here it is the CPU's."""
        return (0, 0)

    def reset(self) -> None:
        """Forget the operations."""
        self.recorded = []


class _Capture:
    """Stands in for ``torch.cuda.graph``."""

    def __init__(self, cuda_graph: Graph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global") -> None:
        self._graph = cuda_graph

    def __enter__(self) -> None:
        device = CountingDevice.current()
        device.counts.captures += 1
        device.capturing = self._graph

    def __exit__(self, *error: object) -> None:
        CountingDevice.current().capturing = None


class _Event:
    """Stands in for ``torch.cuda.Event``. What it stands for has passed by the time anybody reads it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Of an earlier copy, that has long passed: no wait for what is queued now."""

    def elapsed_time(self, other: Any) -> float:
        return 0.0


class _Stream:
    """Stands in for a stream: there is one order only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def wait_stream(self, other: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def synchronize(self) -> None:
        CountingDevice.current().wait("stream.synchronize")


class _Nothing:
    """A context manager that does nothing, whatever it is made for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


class _Factories(TorchFunctionMode):
    """Makes tensors that are asked for on the device, without waking CUDA's own library."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        pinned = kwargs.pop("pin_memory", False)
        wanted = kwargs.get("device")
        on_device = wanted is not None and not isinstance(wanted, int) and torch.device(wanted).type == DEVICE.type
        device = CountingDevice.current()
        if func is torch.tensor or func is torch.as_tensor:
            if on_device:
                kwargs["device"] = "cpu"
                device.wait("a blocking copy to the device")
            made = func(*args, **kwargs)
            if pinned:
                made.pinned = True
            return OnDevice(made) if on_device else made
        if func is Tensor.new_tensor and isinstance(args[0], OnDevice):
            device.wait("a blocking copy to the device")
            return OnDevice(args[0].inner.new_tensor(*args[1:], **kwargs))
        if on_device and not any(True for _ in _tensors(args)):
            kwargs["device"] = "cpu"
            return device.call(f"aten::{func.__name__}", func, args, kwargs)
        if func is Tensor.pin_memory and not isinstance(args[0], OnDevice):
            made = args[0].clone()
            made.pinned = True
            return made
        if func in (Tensor.to, Tensor.cuda) and not isinstance(args[0], OnDevice):
            return self._moved(func, args, kwargs)
        made = func(*args, **kwargs)
        if pinned:
            made.pinned = True
        return made

    @staticmethod
    def _moved(func: Any, args: Any, kwargs: Any) -> Any:
        named = [one for one in (*args[1:], kwargs.get("device")) if isinstance(one, str | torch.device | OnDevice)]
        there = any(one.device.type == "cuda" if isinstance(one, Tensor) else torch.device(one).type == "cuda" for one in named)
        if func is not Tensor.cuda and not there:
            return func(*args, **kwargs)
        dtypes = [one for one in (*args[1:], kwargs.get("dtype")) if isinstance(one, torch.dtype)]
        dtypes += [one.dtype for one in named if isinstance(one, Tensor)]
        inner = args[0].detach().to(dtypes[0]) if dtypes else args[0].detach()
        device = CountingDevice.current()
        device.upload(kwargs.get("non_blocking", False) and getattr(args[0], "pinned", False))
        return OnDevice(inner.clone())


class _Counter(TorchDispatchMode):
    """Sees operations on host tensors that also concern the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(isinstance(one, OnDevice) for one in _tensors([args, kwargs or {}])):
            return CountingDevice.current().dispatch(func, args, kwargs or {})
        wanted = (kwargs or {}).get("device")
        if wanted is not None and torch.device(wanted).type == DEVICE.type:  # an operation's own number, such as where's
            return CountingDevice.current().call(func._schema.name, func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class CountingDevice:
    """The device and its counts. One at a time, for as long as :meth:`present` lasts."""

    _present: ClassVar[CountingDevice | None] = None

    def __init__(self) -> None:
        self.counts = Counts()
        self.capturing: Graph | None = None
        self.where: Callable[[], str] = lambda: ""

    @classmethod
    def current(cls) -> CountingDevice:
        assert cls._present is not None, "the pretended device is not there any more"
        return cls._present

    def fresh(self) -> Counts:
        """What was counted since the last call of this."""
        counted, self.counts = self.counts, Counts()
        return counted

    def wait(self, reason: str) -> None:
        """The host waits for the device."""
        if self.capturing is not None:
            raise CaptureFailed(f"The host waited for the device while a graph was captured: {reason}.")
        self.counts.waits += 1
        self.counts.reasons[f"{reason}{self.where()}"] += 1

    def upload(self, pinned: bool) -> None:
        """A copy from the host: without a wait only from pinned memory."""
        if pinned:
            self.counts.uploads += 1
            self.counts.calls += 1
            self.counts.launches += 1
        else:
            self.wait("a blocking copy to the device")

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One aten call that concerns the device."""
        name = func._schema.name
        if name == "aten::copy_" and not isinstance(args[0], OnDevice):
            if not (kwargs.get("non_blocking") or args[2:3] == (True,)) or not getattr(args[0], "pinned", False):
                self.wait("a blocking copy to the host")
            args[0].copy_(args[1].inner)
            return args[0]
        if name == "aten::copy_" and not isinstance(args[1], OnDevice) and args[1].dim():
            self.upload((kwargs.get("non_blocking") or args[2:3] == (True,)) and getattr(args[1], "pinned", False))
            args[0].inner.copy_(args[1])
            return args[0]
        if name == "aten::_to_copy" and kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu":
            self.wait("a blocking copy to the host")
            return func(args[0].inner, **{**kwargs, "non_blocking": False})
        if name in _WAITS and not (name == "aten::repeat_interleave" and kwargs.get("output_size") is not None):
            self.wait(name)
            if name == "aten::_local_scalar_dense":
                return func(args[0].inner)
        if name in ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"):
            self._check_indices(args[1])
        elif name != "aten::_to_copy":
            self._check_places(name, args, kwargs)
        return self.call(name, func, args, kwargs)

    def _check_indices(self, indices: Sequence[Tensor | None]) -> None:
        for index in indices:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                self.wait("an index of bools")
            elif index is not None and not isinstance(index, OnDevice) and index.dim():
                self.wait("an index copied from the host")

    @staticmethod
    def _check_places(name: str, args: Any, kwargs: Any) -> None:
        if any(not isinstance(one, OnDevice) and one.dim() for one in _tensors([args, kwargs])):
            raise RuntimeError(f"{name}: expected all tensors on the same device, but one of them is on the host")

    def call(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute on the CPU, count, and record where a graph is being captured."""
        args, kwargs = tree_map(_inner, args), tree_map(_inner, kwargs)
        if isinstance(kwargs.get("device"), str | torch.device):
            kwargs["device"] = torch.device("cpu")
        return self._computed(name, func, args, kwargs)

    def _computed(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        found = func(*args, **kwargs)
        results, given = list(_tensors(found)), list(_tensors([args, kwargs]))
        if self.capturing is not None:
            self.capturing.recorded.append(_Recorded(func, args, kwargs, results))
        else:
            storages = {one.untyped_storage().data_ptr() for one in given if one.numel()}
            mutable = getattr(getattr(func, "_schema", None), "is_mutable", False)
            view = not mutable and results and all(one.untyped_storage().data_ptr() in storages for one in results)
            self.counts.calls += 1
            self.counts.launches += not view
            self.counts.kinds[name] += 1
        return tree_map(lambda one: OnDevice(one) if isinstance(one, Tensor) else one, found)

    @contextmanager
    def present(self) -> Iterator[CountingDevice]:
        """While this lasts ``cuda`` is this device, in this thread."""
        assert CountingDevice._present is None, "one such device at a time"
        with ExitStack() as stack:
            forget()
            stack.callback(forget)
            for name, stand_in in _stand_ins(self).items():
                stack.enter_context(mock.patch.object(torch.cuda, name, stand_in))
            # Inference mode refuses views of tensors that only stand for others.
            stack.enter_context(mock.patch.object(torch._C, "_InferenceMode", _without_gradients))
            overwritten = torch.__future__.get_overwrite_module_params_on_conversion()
            torch.__future__.set_overwrite_module_params_on_conversion(True)
            stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwritten)
            CountingDevice._present = self
            stack.callback(setattr, CountingDevice, "_present", None)
            stack.enter_context(_Factories())
            stack.enter_context(_Counter())
            yield self


def _without_gradients(mode: bool) -> torch.no_grad:
    """What inference mode is meanwhile."""
    return torch.no_grad()


def _stand_ins(device: CountingDevice) -> dict[str, Any]:
    """What stands for the functions of ``torch.cuda`` meanwhile."""
    memory = 1 << 34
    return {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda *args: device.wait("torch.cuda.synchronize"),
        "current_stream": _Stream,
        "default_stream": _Stream,
        "Stream": _Stream,
        "stream": _Nothing,
        "device": _Nothing,
        "Event": _Event,
        "CUDAGraph": Graph,
        "graph": _Capture,
        "graph_pool_handle": lambda: (0, 0),
        "empty_cache": lambda: None,
        "mem_get_info": lambda *args: (memory, memory),
        "get_device_name": lambda *args: "counted on the CPU",
        "is_bf16_supported": lambda *args: True,
    }
