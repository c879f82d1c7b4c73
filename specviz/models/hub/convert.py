"""Conversion of a GGUF file into a folder of safetensors, once, so that every later load takes seconds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFReader
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from specviz.errors import ModelUnavailable
from specviz.models.hub.cache_dir import Progress, ensure_folder, flushed, only_one, silent
from specviz.models.loading_lock import exclusive_loading

_MANIFEST = "specviz.json"
_FORMAT = 1
# Splitters that transformers 5.23 rebuilds as the file means them; any other is taken for GPT-2's, and we say so.
_KNOWN_SPLITTERS = frozenset(
    "default gpt-2 llama-bpe llama-v3 llama3 llama4 falcon3 smaug-bpe tekken pixtral qwen2 qwen35 deepseek-r1-qwen "
    "megrez gpt-4o minimax-m2 lfm2".split()
)


def safetensors_copy(
    folder: Path,
    identity: Mapping[str, Any],
    gguf_file: Callable[[], Path],
    progress: Progress = silent,
    unpack: Callable[[Path, Path], tuple[str, ...]] | None = None,
) -> Path:
    """``folder`` with a GGUF model as safetensors, made when it is missing, damaged, or of another file.

    ``identity`` is plain JSON that changes when the GGUF does; it is kept beside the copy. ``gguf_file`` is asked for
    the file only when it is needed. ``unpack(file, folder)`` reads a file of another kind and returns warnings. Raises
    ModelUnavailable when transformers cannot read the file.
    """
    if is_ready(folder, identity):
        return folder
    with only_one(f"convert-{folder.name}", progress):
        if not is_ready(folder, identity):
            part = folder.with_name(folder.name + ".part")
            shutil.rmtree(part, ignore_errors=True)
            ensure_folder(part)
            try:
                gguf = gguf_file()
                progress(f"Unpacking {gguf.name}, this once{'' if unpack else ' (about half a minute)'}", None)
                warnings = (unpack or _convert)(gguf, part)
                _write_manifest(part, identity, warnings)
                shutil.rmtree(folder, ignore_errors=True)
                part.rename(folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return folder


def is_ready(folder: Path, identity: Mapping[str, Any]) -> bool:
    """Whether ``folder`` holds a whole copy of the file called ``identity``."""
    manifest = _manifest(folder)
    if manifest.get("format") != _FORMAT or manifest.get("source") != dict(identity):
        return False
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in manifest["files"].items())


def conversion_warnings(folder: Path) -> tuple[str, ...]:
    """What a user should know about a copy made here; empty for any other folder."""
    return tuple(_manifest(folder).get("warnings", ()))


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _write_manifest(folder: Path, identity: Mapping[str, Any], warnings: tuple[str, ...]) -> None:
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    for name in files:
        flushed(folder / name)
    manifest = {"format": _FORMAT, "source": dict(identity), "files": files, "warnings": warnings}
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _convert(gguf: Path, folder: Path) -> tuple[str, ...]:
    try:
        header = GGUFReader(gguf)
    except (ValueError, IndexError, OSError) as problem:
        raise ModelUnavailable(f"{gguf.name} is damaged or no GGUF file ({problem}). Get the file again.") from problem
    where = {"gguf_file": gguf.name, "local_files_only": True, "trust_remote_code": False}
    unpacked = {"dtype": _storage(header), "quantization_config": GgufConfig(dequantize=True)}
    try:
        with exclusive_loading():
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
            model = AutoModelForCausalLM.from_pretrained(gguf.parent, **where, **unpacked)
    except (ValueError, KeyError, RuntimeError, ImportError) as problem:
        raise ModelUnavailable(
            f"{gguf.name} cannot be read by transformers ({problem}). Give a folder or hub id with safetensors instead."
        ) from problem
    warnings = _mend_splitter(tokenizer, _text_field(header, "tokenizer.ggml.pre"))
    # The weights are plain tensors now; transformers refuses to save what still calls itself quantised.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.is_quantized = False
    model.hf_quantizer = None
    with exclusive_loading():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return warnings


def _storage(header: GGUFReader) -> torch.dtype:
    """The precision the file's matrices have: float32 or float16 where they are that, bfloat16 where quantised."""
    kinds = {tensor.tensor_type for tensor in header.tensors if len(tensor.shape) > 1}
    if GGMLQuantizationType.F32 in kinds:
        return torch.float32
    return torch.float16 if GGMLQuantizationType.F16 in kinds else torch.bfloat16


def _text_field(header: GGUFReader, name: str) -> str:
    field = header.get_field(name)
    return str(field.contents()) if field is not None else ""


def _mend_splitter(tokenizer: Any, splitter: str) -> tuple[str, ...]:
    """Give the tokenizer the splitter its file names where transformers does not. Returns warnings.

    "smollm" cuts out every digit before GPT-2's rule sees the text, so blanks in front of a number stay together.
    """
    if splitter == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif splitter and splitter not in _KNOWN_SPLITTERS:
        return (f"This GGUF cuts text by the rule {splitter!r}, which may be rebuilt only nearly: prompts can differ.",)
    return ()
