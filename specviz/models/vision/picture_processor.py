"""Picture processor: transformers' own, or its picture part where the whole one requires packages for videos too.

The processors of Qwen-VL and SmolVLM2 require torchvision and num2words, which only videos need. A picture needs the image
processor, the tokenizer, the chat template, and the expansion of the placeholder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer

from specviz.errors import ModelUnavailable
from specviz.models.hub.opening import LOCAL

Expansion = Callable[[Mapping[str, Any], Mapping[str, Any], str], str]
"""Expands the placeholder (last argument), given the image processor's output and the settings of processor and tokenizer."""


def _by_patches(given: Mapping[str, Any], settings: Mapping[str, Any], mark: str) -> str:
    """Qwen-VL: one token for each square of merged patches."""
    return mark * (int(given["image_grid_thw"][0].prod()) // int(settings["merge_size"]) ** 2)


def _by_tiles(given: Mapping[str, Any], settings: Mapping[str, Any], mark: str) -> str:
    """SmolVLM: tiles row by row, each preceded by its row and column, then the whole picture."""
    rows, columns = int(given["rows"][0][0]), int(given["cols"][0][0])
    around, tokens = "<fake_token_around_image>", mark * int(settings.get("image_seq_len", 169))
    tiles = "".join(
        "".join(f"{around}<row_{row + 1}_col_{column + 1}>{tokens}" for column in range(columns)) + "\n" for row in range(rows)
    )
    return f"{tiles}{chr(10) if tiles else ''}{around}<global-img>{tokens}{around}"


EXPANSIONS: Mapping[str, Expansion] = {
    "qwen2_vl": _by_patches,
    "qwen2_5_vl": _by_patches,
    "qwen3_vl": _by_patches,
    "smolvlm": _by_tiles,
}
"""Expansions by transformers' model type, for models whose whole processor covers videos too."""
_MODEL_INPUTS = ("pixel_values", "pixel_attention_mask", "image_grid_thw", "rows", "cols")


class PictureProcessor:
    """Processor for one picture and one question, with the interface of transformers' processors."""

    def __init__(
        self,
        image_processor: Any,
        tokenizer: Any,
        template: str | None,
        settings: Mapping[str, Any],
        mark: str,
        expand: Expansion,
    ) -> None:
        self.image_processor, self.tokenizer, self._template = image_processor, tokenizer, template
        self._settings, self._mark, self._expand = settings, mark, expand

    def apply_chat_template(self, conversation: Sequence[Any], add_generation_prompt: bool, tokenize: bool) -> str:
        """The conversation in the model's template, with one placeholder for the picture."""
        return self.tokenizer.apply_chat_template(
            conversation, chat_template=self._template, add_generation_prompt=add_generation_prompt, tokenize=tokenize
        )

    def __call__(self, images: Sequence[Sequence[Any]], text: Sequence[str], return_tensors: str) -> dict[str, Any]:
        """The model's inputs. Raises ValueError unless the text has exactly one placeholder for the picture."""
        tiled = {"return_row_col_info": True} if self._expand is _by_tiles else {}
        given = self.image_processor(images=images if tiled else images[0], return_tensors=return_tensors, **tiled)
        if text[0].count(self._mark) != 1:
            raise ValueError("the template leaves no place for one picture")
        written = text[0].replace(self._mark, self._expand(given, self._settings, self._mark))
        ids = self.tokenizer([written], return_tensors=return_tensors)["input_ids"]
        found = {name: given[name] for name in _MODEL_INPUTS if name in given}
        if "image_grid_thw" in found:
            found["mm_token_type_ids"] = (ids == self.tokenizer.convert_tokens_to_ids(self._mark)).to(torch.long)
        return {"input_ids": ids, **found}


def picture_processor(folder: Path, config: Any, name: str) -> Any:
    """Load the processor of the model in ``folder``. Raises ModelUnavailable if its tokenizer lacks the picture's token."""
    if config.model_type not in EXPANSIONS:
        return AutoProcessor.from_pretrained(folder, **LOCAL)
    tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
    image_processor = AutoImageProcessor.from_pretrained(folder, backend="pil", **LOCAL)
    mark: Any = tokenizer.convert_ids_to_tokens(int(config.image_token_id))
    if mark is None:
        raise ModelUnavailable(f"The tokenizer of {name} has no token {config.image_token_id}, which stands for the picture.")
    said = _json(folder / "processor_config.json")
    settings = {"merge_size": getattr(image_processor, "merge_size", 1), **said}
    expand = EXPANSIONS[config.model_type]
    return PictureProcessor(image_processor, tokenizer, _template(folder, said), settings, mark, expand)


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The processor's chat template; None if only the tokenizer has one."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    return _json(folder / "chat_template.json").get("chat_template") or settings.get("chat_template")


def _json(file: Path) -> dict[str, Any]:
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found if isinstance(found, dict) else {}
