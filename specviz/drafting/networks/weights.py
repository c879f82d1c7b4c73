"""Weight file format: safetensors with matrices as row-wise int8 and one scale per row; other tensors are float16 or int32."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specviz.errors import ModelUnavailable

_SCALE = ".row_scale"


def write_weights(path: Path, tensors: Mapping[str, Tensor], card: Mapping[str, str]) -> None:
    """Write ``tensors`` by name, with ``card`` as metadata: float matrices as int8 [row, column] with one scale per row.

    The file is replaced atomically, so an interrupted write leaves the previous file.
    """
    stored: dict[str, Tensor] = {}
    for name, value in tensors.items():
        value = value.detach().cpu()
        if not value.is_floating_point():
            stored[name] = value.to(torch.int32)
        elif value.ndim == 2:
            scale = (value.float().abs().amax(dim=1, keepdim=True) / 127).clamp_min(1e-8).half().clamp_min(6e-8)
            stored[name] = (value.float() / scale.float()).round().clamp(-127, 127).to(torch.int8)
            stored[name + _SCALE] = scale
        else:
            stored[name] = value.half()
    fresh = path.with_name(f"{path.name}.new")
    try:
        save_file({name: value.contiguous() for name, value in stored.items()}, fresh, metadata=dict(card))
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a file's tensors (float32 or int64) and metadata. Raises ModelUnavailable if the file cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}
            card = dict(file.metadata() or {})
    except (OSError, SafetensorError) as problem:
        raise ModelUnavailable(f"{path.name} cannot be read ({problem}): fetch the file again.") from problem
    for name in [name for name in stored if not name.endswith(_SCALE)]:
        scale, value = stored.pop(name + _SCALE, None), stored[name]
        if scale is None:
            stored[name] = value.float() if value.is_floating_point() else value.long()
        else:
            stored[name] = value.float() * scale.float()
    return stored, card
