"""Conversion of a GGUF file into a folder of safetensors, once, so that every later load takes seconds."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFReader, get_tensor_name_map
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

from specviz.errors import ModelUnavailable, OutOfMemory, SpecvizError
from specviz.models.hub.cache_dir import Progress, cache_write, ensure_folder, file_lock, fsync, no_progress, read_json
from specviz.models.hub.gguf_config import DIVISORS, apply_rotary, apply_settings, field, read_rotary, refuse_other_angles
from specviz.models.hub.opening import LOCAL, first_line
from specviz.models.loading_lock import exclusive_loading

_MANIFEST = "specviz.json"
_FORMAT = 3
"""Version of a copy's format, raised whenever older copies may differ from new ones, so that none is reused."""
# Splitters that transformers 5.23 rebuilds correctly; it treats any other as GPT-2's, which a warning reports.
_KNOWN_SPLITTERS = frozenset(
    "default gpt-2 llama-bpe llama-v3 llama3 llama4 falcon3 smaug-bpe tekken pixtral qwen2 qwen35 deepseek-r1-qwen "
    "megrez gpt-4o minimax-m2 lfm2".split()
)

Unpack = Callable[[Path, Path], tuple[str, ...]]
"""Writes the model in a file into a folder, as transformers saves one. Returns warnings."""


def safetensors_copy(
    folder: Path,
    identity: Mapping[str, Any],
    gguf_file: Callable[[], Path],
    progress: Progress = no_progress,
    unpack: Unpack | None = None,
) -> Path:
    """Return ``folder`` with a GGUF model as safetensors, converted if it is missing, damaged, or made from another file.

    ``identity`` is plain JSON that changes when the GGUF does; it is kept beside the copy. ``gguf_file`` is called
    only when the file is needed. ``unpack`` reads a file of another kind. Raises ModelUnavailable when transformers
    cannot read the file.
    """
    if is_ready(folder, identity):
        return folder
    with file_lock(f"convert-{folder.name}", progress):
        if not is_ready(folder, identity):
            part = folder.with_name(folder.name + ".part")
            shutil.rmtree(part, ignore_errors=True)
            ensure_folder(part)
            try:
                gguf = gguf_file()
                progress(f"Unpacking {gguf.name}, this once{'' if unpack else ' (about half a minute)'}", None)
                with cache_write(folder.name):
                    warnings = (unpack or _convert)(gguf, part)
                    _write_manifest(part, identity, warnings)
                    shutil.rmtree(folder, ignore_errors=True)
                    part.rename(folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return folder


def is_ready(folder: Path, identity: Mapping[str, Any]) -> bool:
    """Whether ``folder`` holds a complete copy of the file with this ``identity``."""
    manifest = read_json(folder / _MANIFEST)
    if manifest.get("format") != _FORMAT or manifest.get("source") != dict(identity):
        return False
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in manifest["files"].items())


def conversion_warnings(folder: Path) -> tuple[str, ...]:
    """Warnings of a converted copy; empty for any other folder."""
    return tuple(read_json(folder / _MANIFEST).get("warnings", ()))


def _write_manifest(folder: Path, identity: Mapping[str, Any], warnings: tuple[str, ...]) -> None:
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    for name in files:
        fsync(folder / name)
    manifest = {"format": _FORMAT, "source": dict(identity), "files": files, "warnings": warnings}
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _convert(gguf: Path, folder: Path) -> tuple[str, ...]:
    header = _header(gguf)
    where: Any = {"gguf_file": gguf.name, **LOCAL}
    unpacked = {"dtype": _storage(header), "quantization_config": GgufConfig(dequantize=True), "output_loading_info": True}
    try:
        rotary = read_rotary(header, gguf.name)
        with exclusive_loading():
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
            config = AutoConfig.from_pretrained(gguf.parent, **where)
            if rotary is not None and hasattr(config, "rope_parameters"):
                apply_rotary(config, rotary)
            unread = apply_settings(config, header, gguf.name)
            opened: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, config=config, **where, **unpacked)
            model, loading_info = opened
    except SpecvizError:
        raise
    except MemoryError as problem:
        raise OutOfMemory(f"{gguf.name} does not fit into memory. Choose a smaller model.") from problem
    except Exception as problem:  # an untrusted file passes through three libraries, each with its own errors
        raise ModelUnavailable(
            f"{gguf.name} cannot be read by transformers ({first_line(problem)}). "
            "Give a folder or hub id with safetensors instead."
        ) from problem
    _refuse_incomplete(gguf.name, header, model, loading_info)
    refuse_other_angles(model, rotary, gguf.name)
    warnings = (*unread, *_mend_splitter(tokenizer, str(field(header, "tokenizer.ggml.pre", ""))))
    # The weights are plain tensors now; transformers refuses to save a model that is still marked as quantised.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.is_quantized = False
    model.hf_quantizer = None
    with exclusive_loading():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return warnings


def _header(gguf: Path) -> GGUFReader:
    """Read a file's header. Raises ModelUnavailable for a file that is damaged, empty, or one part of several."""
    try:
        header = GGUFReader(gguf)
        count, part = int(field(header, "split.count", 1)), int(field(header, "split.no", 0))
    except Exception as problem:  # numpy and struct on damaged bytes
        raise ModelUnavailable(f"{gguf.name} is damaged or no GGUF file ({problem}). Get the file again.") from problem
    if count > 1:
        raise ModelUnavailable(
            f"{gguf.name} is part {part + 1} of {count} of one model. "
            "Merge them with `llama-gguf-split --merge` and give the whole file."
        )
    if not header.tensors:
        raise ModelUnavailable(f"{gguf.name} holds no weights, only a header. Get the file again.")
    return header


def _refuse_incomplete(name: str, header: GGUFReader, model: Any, loading_info: Mapping[str, Any]) -> None:
    """Raise ModelUnavailable unless the file holds all of the model's weights and no others.

    transformers silently ignores unknown tensors, so the numbers in file and model are counted and must be equal.
    A tied head may be stored once more.
    """
    kind = model.config.model_type
    if missing := sorted(loading_info["missing_keys"]):
        raise ModelUnavailable(
            f"{name} lacks {len(missing)} of the weights of a {kind} model ({missing[0]}, …). "
            "Get the whole file, or one that names its architecture rightly."
        )
    if unexpected := sorted(loading_info["unexpected_keys"]):
        raise _too_much(name, kind, unexpected[0])
    tied = model.config.tie_word_embeddings
    stored = {
        tensor.name: int(tensor.n_elements)
        for tensor in header.tensors
        if tensor.name not in DIVISORS
        and not (tied and tensor.name == "output.weight")
        and not _unused(tensor.name, model.config)
    }
    held = {value.data_ptr(): value.numel() for value in model.state_dict().values() if value.numel()}
    if sum(stored.values()) != sum(held.values()):
        raise _too_much(name, kind, _stranger(stored, model))


def _unused(name: str, config: Any) -> bool:
    """Whether the model computes the same without this tensor.

    This holds for layers after the model's own that only draft (MTP). It also holds for keys and values of layers that take
    them from an earlier layer (Gemma 3n and 4).
    """
    block = re.match(r"blk\.(\d+)\.(attn_[kv])?", name)
    if block is None:
        return False
    layer, own = int(block[1]), int(config.num_hidden_layers)
    return layer >= own or bool(block[2]) and layer >= own - int(getattr(config, "num_kv_shared_layers", 0) or 0)


def _too_much(name: str, kind: str, tensor: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"{name} holds {tensor}, which a {kind} model has no place for: it may name another architecture than its own. Get the "
        "file again, or give a folder or hub id with safetensors."
    )


def _stranger(stored: Mapping[str, int], model: Any) -> str:
    """Name of the first tensor of a file that its model lacks, in llama.cpp's naming."""
    kind = next((arch for arch, name in MODEL_ARCH_NAMES.items() if name == model.config.model_type), MODEL_ARCH.LLAMA)
    names = get_tensor_name_map(kind, model.config.num_hidden_layers)
    known = {names.get_name(name.rpartition(".")[0]): name for name in model.state_dict()}
    known_names = {f"{theirs}.{ours.rpartition('.')[2]}" for theirs, ours in known.items()}
    return next((name for name in sorted(stored) if name not in known_names), "more numbers than it needs")


def _storage(header: GGUFReader) -> torch.dtype:
    """Number format for the file's matrices: float32 or float16 where they are stored so, bfloat16 where quantised."""
    kinds = {tensor.tensor_type for tensor in header.tensors if len(tensor.shape) > 1}
    if GGMLQuantizationType.F32 in kinds:
        return torch.float32
    return torch.float16 if GGMLQuantizationType.F16 in kinds else torch.bfloat16


def _mend_splitter(tokenizer: Any, splitter: str) -> tuple[str, ...]:
    """Set the splitter that the file names on the tokenizer where transformers does not. Returns warnings.

    "smollm" splits off every digit before GPT-2's rule applies, so that spaces before a number stay together.
    """
    if splitter == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif splitter and splitter not in _KNOWN_SPLITTERS:
        return (f"This GGUF cuts text by the rule {splitter!r}, which may be rebuilt only nearly: prompts can differ.",)
    return ()
