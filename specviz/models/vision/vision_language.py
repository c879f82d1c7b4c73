"""Loader of vision-language models and their processors: safetensors only, and no code from repositories."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from specviz.errors import ModelUnavailable
from specviz.models.cache import exclusive_loading, load_once
from specviz.models.device import choose_device
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.models.hub.catalog import ShippedFile, resolve
from specviz.models.hub.opening import LOCAL, loading_warnings, opening
from specviz.models.hub.packed_model import shipped_file
from specviz.models.hub.prepare import prepare
from specviz.models.text.load import LoadedText
from specviz.models.vision import scenes
from specviz.models.vision.picture_question import PictureReader, picture_processor, square_reader
from specviz.paths import BASE


@dataclass(frozen=True, kw_only=True)
class LoadedVisionLanguage(LoadedText):
    """Vision-language model ready to run: ``read(picture, question)`` returns a :class:`PictureQuestion`."""

    read: PictureReader

    @property
    def image_token_id(self) -> int:
        return int(self.model.config.image_token_id)


def load_vision_language(
    name: str, dtype: str = "auto", device: str = "auto", progress: Progress = no_progress
) -> LoadedVisionLanguage:
    """Load the model called ``name``: a catalogue name, hub id or folder. Models stay loaded while they fit.

    ``dtype`` and ``device`` are "auto" or the user's choice. Raises ModelUnavailable, BadInput or OutOfMemory.
    """
    where, entry = choose_device(device), resolve(name).entry
    if entry is not None and entry.modality != "vision_language":
        raise ModelUnavailable(f"{name} reads no pictures. Choose a vision-language model, such as {scenes.NAME}.")
    source = None if entry is None else entry.source
    path = shipped_file(BASE / source.path) if isinstance(source, ShippedFile) else None

    def load(how: torch.dtype) -> LoadedVisionLanguage:
        if path is not None:
            return load_scenes(path, how, where)
        return _load(name, prepare(name, progress), how, where)

    return load_once(name, dtype, (where,), load, path and path.stat().st_mtime_ns)


def load_scenes(path: Path, dtype: torch.dtype, device: torch.device) -> LoadedVisionLanguage:
    """Load the shipped small model."""
    model, tokenizer = scenes.load(path)
    model.to(device, dtype)
    return LoadedVisionLanguage.of(scenes.NAME, model, tokenizer, read=square_reader(tokenizer, scenes.NAME, model))


def _load(name: str, folder: Path, dtype: torch.dtype, device: torch.device) -> LoadedVisionLanguage:
    with opening(name, folder):
        config = AutoConfig.from_pretrained(folder, **LOCAL)
        if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
            raise ModelUnavailable(f"{name} is a {config.model_type} model, which reads no pictures. Choose one that does.")
        if getattr(config, "image_token_id", None) is None:
            raise ModelUnavailable(f"{name} ({config.model_type}) has no picture token, by which its pictures could be found.")
        with exclusive_loading():
            processor = picture_processor(folder, config)
            opened: Any = AutoModelForImageTextToText.from_pretrained(
                folder, config=config, dtype=dtype, use_safetensors=True, attn_implementation="sdpa",
                output_loading_info=True, **LOCAL,
            )  # fmt: skip
            model, loading_info = opened
        warnings = loading_warnings(name, folder, loading_info)
        if getattr(processor, "tokenizer", None) is None:
            raise ModelUnavailable(f"{name} has no processor for pictures and text. Download the whole repository.")
        read = PictureReader(processor, name, model.to(device))
        return LoadedVisionLanguage.of(name, model, processor.tokenizer, read=read, warnings=warnings)
