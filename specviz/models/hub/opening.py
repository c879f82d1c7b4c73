"""Context manager for opening untrusted model folders: any library's error becomes one sentence for the user."""

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
"""Config fields that set a model's size; checked before the model is built."""
_IDS = re.compile(r"\w*_token_(ids?|index)")
"""Config fields that hold one token id or a list of token ids."""
_POINTER = b"version https://git-lfs"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")

LOCAL: Any = {"local_files_only": True, "trust_remote_code": False}
"""Keyword arguments for ``from_pretrained``: no network access, and no code from a repository."""


@contextmanager
def opening(name: str, folder: Path, what: str = "", places: str = "memory") -> Iterator[None]:
    """Turn any error while the model called ``name`` is opened from ``folder`` into ModelUnavailable or OutOfMemory.

    ``what``: kind of model that the folder is opened as. ``places``: devices whose memory the model needs. Both appear in
    messages.
    """
    import torch  # deferred, because the page lists models without torch

    try:
        _refuse_settings(name, folder)
        yield
    except SpecvizError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as problem:
        raise _no_room(name, places) from problem
    except SafetensorError as problem:
        fetched = any(folder.resolve().is_relative_to(Path(place).resolve()) for place in (cache_folder(), HF_HUB_CACHE))
        again = "Delete that folder and try again." if fetched else "Download the model again."  # a user's own folder is kept
        raise ModelUnavailable(f"The weights of {name} in {folder} are damaged ({problem}). {again}") from problem
    except ImportError as problem:
        reason = " ".join(str(problem).split())[:300]
        raise ModelUnavailable(f"{name} needs a package that is not installed: {reason}") from problem
    except Exception as problem:  # each library has its own errors for damaged files
        if any(words in str(problem).lower() for words in ("not enough memory", "out of memory", "allocate memory")):
            raise _no_room(name, places) from problem
        if "backend tokenizer" in str(problem) and not any((folder / file).is_file() for file in _TOKENIZERS):
            raise ModelUnavailable(
                f"{name} holds no tokenizer.json. Put the tokenizer's files next to the weights in {folder}."
            ) from problem
        raise ModelUnavailable(
            f"{name} cannot be loaded{what and f' as {what}'} from {folder}: {first_line(problem)}"
        ) from problem


def refuse_missing(name: str, keys: Iterable[str]) -> None:
    """Raise ModelUnavailable if ``keys``, the names of a model's missing weights, is not empty."""
    if missing := sorted(keys):
        raise ModelUnavailable(f"{name} lacks {len(missing)} of its weights ({missing[0]}, …). Download the whole model.")


def loading_warnings(name: str, folder: Path, info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return warnings about a model that transformers loaded with this ``info``: an adapter in the folder, unused weights.

    Raises ModelUnavailable if weights are missing.
    """
    refuse_missing(name, info["missing_keys"])
    warnings = []
    if (folder / "adapter_config.json").is_file() or (folder / "adapter_model.safetensors").is_file():
        warnings.append(f"{name} holds a LoRA adapter, which is not applied. To use it, merge the adapter into the base model.")
    if info["unexpected_keys"]:
        warnings.append(f"{len(info['unexpected_keys'])} weights stored with {name} are not part of the model.")
    return tuple(warnings)


def first_line(problem: BaseException) -> str:
    """Return an error's first line, or all lines joined if the first ends in a colon; without a message, the error's type."""
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return (" ".join(" ".join(lines).split()) if lines[0].rstrip().endswith(":") else lines[0])[:300]


def _no_room(name: str, places: str) -> OutOfMemory:
    return OutOfMemory(f"{name} does not fit into the memory of {places}. Choose a smaller model or number format.")


def _refuse_settings(name: str, folder: Path) -> None:
    """Raise ModelUnavailable for Git LFS pointers and impossible settings.

    A setting is impossible if it asks for more layers than there are tensors, a size beyond the stored bytes, or a fractional
    token id. Building such a model could exhaust memory.
    """
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
                    f"The {file} of {name} sets {field} to {shown(value)}, but has weights of only {whole}. Download the whole "
                    "model."
                )
            ids = value if isinstance(value, list) else [value]
            if value is not None and _IDS.fullmatch(field) and not all(type(part) is int for part in ids):
                raise ModelUnavailable(
                    f"The {file} of {name} sets {field} to {shown(value)}, which is not a whole number. Download the model again."
                )


def _fields(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a config and of the configs nested in it."""
    for field, value in settings.items() if isinstance(settings, dict) else ():
        yield field, value
        yield from _fields(value)
