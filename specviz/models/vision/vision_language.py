"""Loader of vision-language models and their picture processors: safetensors only, no foreign code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from specviz.errors import ModelUnavailable
from specviz.models import room
from specviz.models.cache import MODELS, ModelCache
from specviz.models.device import choose_device, choose_dtype, dtype_name
from specviz.models.hub.cache_dir import Progress, silent
from specviz.models.hub.catalog import ShippedFile, resolve
from specviz.models.hub.opening import adapter_warnings, opening
from specviz.models.hub.prepare import prepare
from specviz.models.hub.vocabulary import tokenizer_hash
from specviz.models.loading_lock import exclusive_loading
from specviz.models.text.architecture import context_length_of, eos_ids_of
from specviz.models.text.text import TokenizerText, embedded
from specviz.models.vision import scenes
from specviz.models.vision.picture_processor import picture_processor
from specviz.models.vision.picture_question import PictureReader, ProcessorReader, SquareReader
from specviz.paths import BASE


@dataclass(frozen=True)
class LoadedVisionLanguage:
    """A vision-language model ready to run: weights frozen, in eval mode, shared between runs.

    ``read(picture, question)`` gives a :class:`PictureQuestion`. ``attention`` is the kernel: eager where maps are wanted.
    """

    name: str
    model: Any
    tokenizer: Any
    read: PictureReader
    text: TokenizerText
    eos_ids: frozenset[int]
    tokenizer_hash: str
    image_token_id: int
    device: torch.device
    dtype: torch.dtype
    warnings: tuple[str, ...] = ()

    @property
    def has_template(self) -> bool:
        """Whether this is an instruct model, with a chat template."""
        return self.text.has_template


_SHELF: ModelCache[LoadedVisionLanguage] = MODELS


def load_vision_language(
    name: str, dtype: str = "auto", device: str = "auto", progress: Progress = silent, attention: str = "sdpa"
) -> LoadedVisionLanguage:
    """The model called ``name``: a catalogue name, hub id or folder. What fits stays loaded.

    ``dtype`` and ``device`` are "auto" or the user's choice; ``attention`` is "sdpa" or "eager". Raises ModelUnavailable,
    BadInput or OutOfMemory.
    """
    where = choose_device(device)
    how = choose_dtype(dtype, where)
    place = resolve(name)
    if place.entry is not None and place.entry.modality != "vision_language":
        raise ModelUnavailable(f"{name} reads no pictures. Choose a vision-language model, such as {scenes.NAME}.")
    size = partial(room.memory_of, name, dtype_name(how))
    if place.entry is not None and isinstance(place.entry.source, ShippedFile):
        path = BASE / place.entry.source.path
        shipped = (str(place.name), dtype_name(how), str(where), attention, str(_stamp(path)))
        return _SHELF.get(shipped, lambda: load_scenes(path, how, where, attention), size, str(where))
    key = (str(place.path or place.name), dtype_name(how), str(where), attention)

    def make() -> LoadedVisionLanguage:
        folder = prepare(name, progress)
        with opening(name, folder):
            return _load(name, folder, how, where, attention)

    return _SHELF.get(key, make, size, str(where))


def load_scenes(path: Path, dtype: torch.dtype, device: torch.device, attention: str = "sdpa") -> LoadedVisionLanguage:
    """Our own small model from its one file."""
    model, tokenizer = scenes.load(path, attention)
    return from_parts(scenes.NAME, model.to(device, dtype), tokenizer)  # type: ignore[arg-type]


def from_parts(name: str, model: Any, tokenizer: Any) -> LoadedVisionLanguage:
    """A SmolVLM that sees one square, with its tokenizer: what the shipped file holds, and what training works on."""
    config = model.config
    side = int(config.vision_config.image_size)
    grid = side // int(config.vision_config.patch_size) // int(config.scale_factor)
    read = SquareReader(
        tokenizer, name, int(config.image_token_id), side, grid, context_length_of(model), model.device, model.dtype
    )
    return _loaded(name, model, tokenizer, read)


def release(name: str | None = None) -> None:
    """Forget the loaded models called ``name``, or all."""
    place = None if name is None else resolve(name)
    _SHELF.release(None if place is None else str(place.path or place.name))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _loaded(name: str, model: Any, tokenizer: Any, read: PictureReader) -> LoadedVisionLanguage:
    frozen = model.eval().requires_grad_(False)
    return LoadedVisionLanguage(
        name=name,
        model=frozen,
        tokenizer=tokenizer,
        read=read,
        text=TokenizerText(tokenizer, name, context_length_of(model), embedded(model)),
        eos_ids=eos_ids_of(model, tokenizer),
        tokenizer_hash=tokenizer_hash(tokenizer),
        image_token_id=int(model.config.image_token_id),
        device=model.device,
        dtype=model.dtype,
    )


def _load(name: str, folder: Path, dtype: torch.dtype, device: torch.device, attention: str) -> LoadedVisionLanguage:
    safely: Any = {"local_files_only": True, "trust_remote_code": False}
    config = AutoConfig.from_pretrained(folder, **safely)
    if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise ModelUnavailable(f"{name} is a {config.model_type} model, which reads no pictures. Choose one that does.")
    if getattr(config, "image_token_id", None) is None:
        raise ModelUnavailable(f"{name} ({config.model_type}) has no picture token, so its tokens cannot be told apart.")
    with exclusive_loading():
        processor = picture_processor(folder, config, name)
        opened: Any = AutoModelForImageTextToText.from_pretrained(
            folder, config=config, dtype=dtype, use_safetensors=True, attn_implementation=attention,
            output_loading_info=True, **safely,
        )  # fmt: skip
        model, loading_info = opened
    missing = sorted(loading_info["missing_keys"])
    if missing:
        raise ModelUnavailable(f"{name} lacks {len(missing)} of its weights ({missing[0]}, …). Get the whole model.")
    if getattr(processor, "tokenizer", None) is None:
        raise ModelUnavailable(f"{name} has no processor for pictures and text. Get the whole repository.")
    model = model.to(device)
    read = ProcessorReader(processor, model.config, name, context_length_of(model), device, dtype)
    warnings = adapter_warnings(name, folder)
    if loading_info["unexpected_keys"]:
        warnings += (f"{len(loading_info['unexpected_keys'])} weights stored with {name} are not part of the model.",)
    return replace(_loaded(name, model, processor.tokenizer, read), warnings=warnings)


def _stamp(path: Path) -> tuple[int, int]:
    """Changes when the file is written anew."""
    return (0, 0) if not path.is_file() else (path.stat().st_mtime_ns, path.stat().st_size)
