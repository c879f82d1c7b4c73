"""Convert a PyTorch checkpoint to a folder with a safetensors file, locally.

Many heads are published as `pytorch_model.bin`, and LlamaGen's models as `.pt`. Such a file is a pickle, which can run code when
opened. This command opens the file with `weights_only`, which allows only tensors and plain containers.
"""

from __future__ import annotations

import argparse
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from specviz.commands.console import print_message, refuse_used
from specviz.errors import BadInput, ModelUnavailable

if TYPE_CHECKING:
    from torch import Tensor

_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
"""Keys of the state dict in checkpoints of common trainers."""
_LLAMAGEN, _PATCH = "tok_embeddings.weight", 16
"""The tensor that identifies a LlamaGen model, and the side of its image patches in pixels."""


def execute(options: argparse.Namespace) -> int:
    """Write ``model.safetensors`` and a ``config.json``: the one beside the checkpoint, or a new one for LlamaGen."""
    file = options.file
    beside = file.resolve().parent
    folder = options.out or beside.parent / f"{beside.name}-safetensors"
    refuse_used(folder)
    tensors = read_zip(file)
    config, stored = None, file.parent / "config.json"
    if stored.is_file():
        try:
            config = json.loads(stored.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise ModelUnavailable(f"The config.json next to {file.name} cannot be read ({problem}). Restore it.") from problem
    if not config and _LLAMAGEN in tensors:  # LlamaGen checkpoints have no config
        pixels = options.image_size
        if pixels is None or pixels < _PATCH or pixels % _PATCH:
            raise BadInput(
                f"{file.name} is a LlamaGen checkpoint, which does not store the image size; add --image-size 256, 384 or 512."
            )
        config = {"model_type": "llamagen", "block_size": (pixels // _PATCH) ** 2}
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    # safetensors refuses tensors that share memory, hence the copies.
    save_file({name: value.detach().contiguous().clone() for name, value in tensors.items()}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    which = "with a config.json" if config is not None else f"without a config.json, because {file.parent} has none"
    heads = any(name.removeprefix("model.").startswith(("layers.0.self_attn.", "fc.")) for name in tensors)
    hint = f" Inspect it: `python -m specviz inspect {folder} --target T`." if heads else ""
    print_message(f"Wrote {len(tensors)} tensors to {folder}, {which}.{hint}")
    return 0


def read_zip(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a PyTorch checkpoint by name.

    Raises BadInput if the file is missing, and ModelUnavailable if the file holds anything but tensors.
    """
    import torch

    if not file.is_file():
        raise BadInput(f"There is no file {file}. Check the path.")
    if not zipfile.is_zipfile(file):
        raise ModelUnavailable(f"{file.name} is not a checkpoint of torch 1.6 or later; older formats are not supported.")
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # some trainers store their options
            stored = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as problem:  # torch's unpickler raises many types
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise ModelUnavailable(
            f"{file.name} cannot be read as weights alone ({reason[:160]}): it is damaged or holds code. Ask for safetensors."
        ) from problem
    for wrapper in _WRAPPERS:
        if isinstance(stored, Mapping) and isinstance(stored.get(wrapper), Mapping):
            stored = stored[wrapper]
    if not isinstance(stored, Mapping) or not stored:
        raise ModelUnavailable(f"{file.name} is not a checkpoint: it holds no named tensors.")
    others = [str(field) for field, value in stored.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise ModelUnavailable(f"{file.name} is not a plain checkpoint: the entry {others[0]} is not a tensor.")
    return {str(field): value for field, value in stored.items()}
