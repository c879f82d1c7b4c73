"""Memory a method holds beside its target: weights, caches, stores, and whatever its resources refer to."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_NOT_OURS = (type, ModuleType, BuiltinFunctionType, torch.device, torch.dtype, type(threading.Lock()), threading.Event)


def held_bytes(composition: Any, ready: Any) -> int:
    """Bytes that ``composition`` keeps alive and the prepared request ``ready`` would not hold without it.

    Every object is counted once. A tensor counts its whole storage, unless the target's weights live there: heads that
    read the target's embedding do not hold it.
    """
    outside = [ready, *vars(ready).values(), getattr(ready.loaded, "model", None), getattr(ready.target, "model", None)]
    model = getattr(ready.loaded, "model", None)
    known = {_room(value)[0] for value in _tensors(model)}
    visited, waiting, total = {id(node) for node in outside}, [composition], 0
    while waiting:
        node = waiting.pop()
        if id(node) in visited or isinstance(node, _NOT_OURS):
            continue
        visited.add(id(node))
        if isinstance(node, torch.Tensor):
            place, size = _room(node)
            total += 0 if place in known else size
            known.add(place)
        elif isinstance(node, np.ndarray):
            total += node.nbytes if node.base is None else 0
            waiting += [node.base] if node.base is not None else []
        else:
            total += sys.getsizeof(node)
            waiting += _referents(node)
    return total


def _room(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor's numbers lie, and how many bytes there are; weights packed for the processor say neither."""
    if tensor.layout != torch.strided:
        return id(tensor), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _tensors(model: Any) -> Iterable[torch.Tensor]:
    """Weights and buffers of a model, nothing where there is none."""
    return [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else ()


def _referents(node: Any) -> list[Any]:
    """What an object refers to; of a function what it closes over, not the module it was written in."""
    if isinstance(node, MethodType):
        return [node.__self__, node.__func__]
    if isinstance(node, FunctionType):
        cells = [cell.cell_contents for cell in node.__closure__ or () if _filled(cell)]
        return [*cells, *(node.__defaults__ or ())]
    return gc.get_referents(node)


def _filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
