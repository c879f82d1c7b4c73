"""Convert a torch zip with weights to a folder of safetensors, locally.

Many heads are published as `pytorch_model.bin`, and LlamaGen's models as `.pt`. Such a file is a pickle, which can run code
when opened. Here torch opens it with `weights_only`, which builds tensors and plain containers and refuses everything else.
"""

# No code that serves requests imports this file.

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
"""Names under which trainers store the weights inside a checkpoint."""
_LLAMAGEN, _PATCH = "tok_embeddings.weight", 16
"""The tensor that identifies a LlamaGen, and the side of a cell of its pictures in pixels."""


def execute(options: argparse.Namespace) -> int:
    """Write ``model.safetensors`` and a copy of the ``config.json`` beside FILE, and print the next step."""
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
            raise ModelUnavailable(f"The config.json beside {file.name} cannot be read ({problem}). Fetch it again.") from problem
    if not config and _LLAMAGEN in tensors:  # such weights come without a config
        pixels = options.image_size
        if pixels is None or pixels < _PATCH or pixels % _PATCH:
            raise BadInput(f"{file.name} is a LlamaGen, which does not store its image size: add --image-size 256, 384 or 512.")
        config = {"model_type": "llamagen", "block_size": (pixels // _PATCH) ** 2}
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    # Tensors that share memory or are views are written whole.
    save_file({name: value.detach().contiguous().clone() for name, value in tensors.items()}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    which = "with its config.json" if config is not None else "without a config.json, since there is none beside the file"
    heads = any(name.removeprefix("model.").startswith(("layers.0.self_attn.", "fc.")) for name in tensors)
    look = f" Inspect it: `python -m specviz inspect {folder} --target T`." if heads else ""
    print_message(f"Wrote {len(tensors)} tensors to {folder}, {which}.{look}")
    return 0


def read_zip(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a torch zip by name. Raises BadInput for a missing file, ModelUnavailable for other content in it."""
    import torch

    if not file.is_file():
        raise BadInput(f"There is no file {file}. Check the path.")
    if not zipfile.is_zipfile(file):
        raise ModelUnavailable(f"{file.name} is not a torch zip, the format since torch 1.6; older pickles are not opened.")
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # trainers' stored options
            stored = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as problem:  # torch's own unpickler refused the file
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise ModelUnavailable(
            f"{file.name} holds more than weights and is not opened ({reason[:160]}). Ask its authors for safetensors."
        ) from problem
    for wrapper in _WRAPPERS:
        if isinstance(stored, Mapping) and isinstance(stored.get(wrapper), Mapping):
            stored = stored[wrapper]
    if not isinstance(stored, Mapping) or not stored:
        raise ModelUnavailable(f"{file.name} holds no named tensors: it is not a checkpoint of weights.")
    others = [str(field) for field, value in stored.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise ModelUnavailable(f"{file.name} holds {others[0]}, which is not a tensor: it is not a plain checkpoint of weights.")
    return {str(field): value for field, value in stored.items()}
