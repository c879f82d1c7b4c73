"""Guard around untrusted model folders: turns any library's error into one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub.constants import HF_HUB_CACHE
from safetensors import SafetensorError, safe_open

from specviz.errors import ModelUnavailable, OutOfMemory, SpecvizError, shown
from specviz.models.hub.cache_dir import cache_folder, read_json

_LAYERS = frozenset("num_hidden_layers n_layer n_layers num_layers".split())
_SIZES = frozenset(
    "hidden_size n_embd d_model intermediate_size vocab_size head_dim num_attention_heads n_head num_key_value_heads num_experts "
    "num_local_experts".split()
)
"""Settings that fix the size of a model as it is built, before any comparison with its weights."""
_IDS = re.compile(r"\w*_token_(ids?|index)")
"""Settings that hold one or several token ids."""
_POINTER = b"version https://git-lfs"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")

LOCAL: Any = {"local_files_only": True, "trust_remote_code": False}
"""Arguments of every ``from_pretrained``: no connection, and no code from a repository."""


@contextmanager
def opening(name: str, folder: Path, what: str = "", places: str = "memory") -> Iterator[None]:
    """Guard the opening of the model called ``name`` in ``folder``; ``what`` names the kind of model that it is opened as.

    Raises ModelUnavailable or OutOfMemory, with one sentence, for any error that a damaged or hostile file causes in a library.
    """
    import torch  # imported here, because the page lists models without torch

    try:
        _refuse_settings(name, folder)
        yield
    except SpecvizError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as problem:
        raise _no_room(name, places) from problem
    except SafetensorError as problem:
        fetched = any(folder.resolve().is_relative_to(Path(place).resolve()) for place in (cache_folder(), HF_HUB_CACHE))
        again = "Delete that folder and try again." if fetched else "Get the model again."  # any other folder is the user's own
        raise ModelUnavailable(f"The weights of {name} in {folder} are damaged ({problem}). {again}") from problem
    except ImportError as problem:
        reason = " ".join(str(problem).split())[:300]
        raise ModelUnavailable(f"{name} needs a package that is not installed: {reason}") from problem
    except Exception as problem:  # tokenizers, configurations and loaders have their own errors for each kind of damage
        if any(words in str(problem).lower() for words in ("not enough memory", "out of memory", "allocate memory")):
            raise _no_room(name, places) from problem
        if "backend tokenizer" in str(problem) and not any((folder / file).is_file() for file in _TOKENIZERS):
            raise ModelUnavailable(
                f"{name} holds no tokenizer.json. Put the tokenizer's files beside the weights in {folder}."
            ) from problem
        raise ModelUnavailable(
            f"{name} cannot be loaded{what and f' as {what}'} from {folder}: {first_line(problem)}"
        ) from problem


def refuse_missing(name: str, keys: Iterable[str]) -> None:
    """Raise ModelUnavailable if a loaded model lacks weights: ``keys`` names them."""
    if missing := sorted(keys):
        raise ModelUnavailable(f"{name} lacks {len(missing)} of its weights ({missing[0]}, …). Get the whole model.")


def loading_warnings(name: str, folder: Path, info: Mapping[str, Any]) -> tuple[str, ...]:
    """Warnings of a model that transformers loaded with this ``info``: an adapter beside it, unused weights.

    Raises ModelUnavailable if it lacks weights.
    """
    refuse_missing(name, info["missing_keys"])
    warnings = []
    if (folder / "adapter_config.json").is_file() or (folder / "adapter_model.safetensors").is_file():
        warnings.append(
            f"{name} holds an adapter (LoRA), which is not applied: its base model runs alone. Merge the two to run both."
        )
    if info["unexpected_keys"]:
        warnings.append(f"{len(info['unexpected_keys'])} weights stored with {name} are not part of the model.")
    return tuple(warnings)


def first_line(problem: BaseException) -> str:
    """An error's first line, joined with the rest if it ends in a colon; the error's type if its message is empty."""
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return (" ".join(" ".join(lines).split()) if lines[0].rstrip().endswith(":") else lines[0])[:300]


def _no_room(name: str, places: str) -> OutOfMemory:
    return OutOfMemory(f"{name} does not fit into the memory of {places}. Choose a smaller model or number format.")


def _refuse_settings(name: str, folder: Path) -> None:
    """Raise ModelUnavailable for a pointer in place of weights, or an impossible setting: more layers than the files hold
    tensors, a size beyond all their bytes, or a token id that is not a whole number. A model of such sizes would take all memory
    before any comparison."""
    tensors, stored = 0, 0
    for held in sorted(folder.glob("*.safetensors")):
        with held.open("rb") as opened:
            if opened.read(len(_POINTER)) == _POINTER:
                raise ModelUnavailable(f"{held.name} is a Git LFS pointer, not the weights. Run `git lfs pull` in {folder}.")
        with safe_open(held, framework="pt") as weights:
            tensors += len(weights.keys())
        stored += held.stat().st_size
    for file in ("config.json", "generation_config.json"):
        for field, value in _fields(read_json(folder / file)):
            most = tensors if field in _LAYERS else stored
            if file == "config.json" and stored and field in _LAYERS | _SIZES and type(value) in (int, float) and value > most:
                whole = f"{tensors} tensors" if field in _LAYERS else f"{stored} bytes"
                raise ModelUnavailable(
                    f"The {file} of {name} says {field} {shown(value)}, but its weights are only {whole}. Get the whole model."
                )
            ids = value if isinstance(value, list) else [value]
            if value is not None and _IDS.fullmatch(field) and not all(type(part) is int for part in ids):
                raise ModelUnavailable(
                    f"The {file} of {name} says {field} {shown(value)}, which is not a whole number. Get the model again."
                )


def _fields(settings: Any) -> Iterator[tuple[str, Any]]:
    """The settings of a configuration and of its nested parts."""
    for field, value in settings.items() if isinstance(settings, dict) else ():
        yield field, value
        yield from _fields(value)
