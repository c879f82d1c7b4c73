"""Prompt of a vision-language model: token ids, pixels, and the positions of the image tokens.

Uses transformers' processors, or image-only ones where the full processor needs video packages: Qwen-VL's needs torchvision,
SmolVLM2's num2words. The shipped small model reads one square.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from PIL import Image
from torch import Tensor
from transformers import AutoProcessor, Idefics3Processor, Qwen2_5_VLProcessor

from specviz.errors import ModelUnavailable
from specviz.models.hub.opening import LOCAL, first_line
from specviz.models.vision.pictures import on_white

Box = tuple[float, float, float, float]
"""Left, top, right and bottom as fractions of the picture's width and height."""
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True)
class PictureQuestion:
    """Inputs of a model's prefill. Axis names: ``token`` (of the prompt), ``visual`` (the image tokens).

    ``inputs``: keyword arguments of the model besides ``input_ids`` (pixels, grids, token types), on its device and in its
    dtype.
    """

    ids: tuple[int, ...]
    inputs: Mapping[str, Tensor]
    visual: tuple[int, ...]
    """Positions of the image tokens in ``ids``."""
    hidden: tuple[int, ...]
    """Positions that a text-only drafter leaves out: ``visual`` and the markers around the image."""
    boxes: tuple[Box, ...]
    """Boxes [visual]: the part of ``picture`` that each image token represents."""
    grid: tuple[int, int]
    """Rows and columns of image tokens; (0, 0) if the tokens form several tiles."""
    picture: Image.Image
    """The picture in RGB, framed as the model sees it; for display."""

    @property
    def text(self) -> tuple[int, ...]:
        """Positions in ``ids`` that a text-only drafter keeps."""
        left_out = frozenset(self.hidden)
        return tuple(place for place in range(len(self.ids)) if place not in left_out)


def boxes_of_grid(rows: int, columns: int, area: Box = WHOLE) -> tuple[Box, ...]:
    """Boxes of a row-major grid over ``area``."""
    left, top, right, bottom = area
    wide, high = (right - left) / columns, (bottom - top) / rows
    return tuple(
        (left + column * wide, top + row * high, left + (column + 1) * wide, top + (row + 1) * high)
        for row in range(rows)
        for column in range(columns)
    )


def pad_to_square(picture: Image.Image, side: int) -> Image.Image:
    """Return the picture in RGB [side, side], scaled to fit and padded with white."""
    image = on_white(picture)
    share = side / max(image.size)
    size = (max(1, round(image.width * share)), max(1, round(image.height * share)))
    if size != image.size:
        image = image.resize(size, Image.Resampling.BICUBIC)
    canvas = Image.new("RGB", (side, side), "white")
    canvas.paste(image, ((side - size[0]) // 2, (side - size[1]) // 2))
    return canvas


class PictureReader:
    """Callable that prepares a picture and a question for one model. Thread-safe.

    ``frame``: function that makes the RGB picture for the processor and the trace.
    """

    def __init__(self, processor: Any, name: str, model: Any, frame: Callable[[Image.Image], Image.Image] = on_white) -> None:
        self.processor, self.name, self.config, self.frame = processor, name, model.config, frame
        self.device, self.dtype = model.device, model.dtype

    def __call__(self, picture: Image.Image, question: str) -> PictureQuestion:
        """Return the prompt. ``picture``: any PIL image, already limited in size and rotated upright.

        Raises ModelUnavailable if the processor rejects the picture.
        """
        image, words = self.frame(picture), question.strip()
        for token in self.processor.tokenizer.all_special_tokens:  # typed text must yield no special tokens
            words = words.replace(token, " ".join(token))
        content = [{"type": "image"}, {"type": "text", "text": words}]
        try:
            written = self.processor.apply_chat_template(
                [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
            )
        except (TemplateError, TypeError, ValueError, AttributeError):
            # Base models such as PaliGemma have no chat template; their processor puts the image first.
            written = words
        try:
            # one prompt with one picture
            inputs = dict(self.processor(images=[[image]], text=[written], return_tensors="pt"))
        except (TypeError, ValueError, IndexError) as problem:
            raise ModelUnavailable(
                f"The processor of {self.name} cannot process this picture ({first_line(problem)})."
            ) from problem
        ids = tuple(inputs.pop("input_ids")[0].tolist())
        visual = tuple(place for place, token in enumerate(ids) if token == self.config.image_token_id)
        if not visual:
            raise ModelUnavailable(f"The processor of {self.name} produced no picture tokens. Choose another model.")
        before = " ".join(self.processor.tokenizer.convert_ids_to_tokens(ids[: visual[-1]]))  # marker tokens number the tiles
        rows, columns = map(int, [(0, 0), *re.findall(r"<row_(\d+)_col_(\d+)>", before)][-1])
        inputs.pop("attention_mask", None)
        grid, boxes = self._grid_and_boxes(len(visual), inputs, rows, columns, image)
        moved = {
            key: value.to(self.device, self.dtype if value.is_floating_point() else value.dtype)
            for key, value in inputs.items()
            if isinstance(value, Tensor)
        }
        marks = {getattr(self.config, f"vision_{end}_token_id", None) for end in ("start", "end")}
        hidden = tuple(place for place, token in enumerate(ids) if token in marks | {self.config.image_token_id})
        return PictureQuestion(ids, moved, visual, hidden, boxes, grid, image)

    def _grid_and_boxes(
        self, count: int, inputs: dict[str, Any], rows: int, columns: int, picture: Image.Image
    ) -> tuple[tuple[int, int], tuple[Box, ...]]:
        """Return the grid and the boxes of the image tokens.

        They form the grid that the processor reports, tiles followed by the whole picture, or one square.
        """
        if "image_grid_thw" in inputs:
            merge = int(self.config.vision_config.spatial_merge_size)
            _, high, wide = inputs["image_grid_thw"][0].tolist()
            return (high // merge, wide // merge), boxes_of_grid(high // merge, wide // merge)
        tiles = rows * columns + 1
        side = round((count / tiles) ** 0.5)
        if side * side * tiles != count:
            return (0, 0), (WHOLE,) * count
        if tiles == 1:
            area = WHOLE
            if getattr(getattr(self.processor, "image_processor", None), "do_center_crop", False):  # to a square
                across, down = min(1.0, picture.height / picture.width), min(1.0, picture.width / picture.height)
                area = ((1 - across) / 2, (1 - down) / 2, (1 + across) / 2, (1 + down) / 2)
            return (side, side), boxes_of_grid(side, side, area)
        parts = [box for area in boxes_of_grid(rows, columns) for box in boxes_of_grid(side, side, area)]
        return (0, 0), (*parts, *boxes_of_grid(side, side))


class PatchProcessor(Qwen2_5_VLProcessor):
    """Processor of the Qwen-VL models without video support."""

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str | None = None) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template or tokenizer.chat_template)


PROCESSORS: Mapping[str, Any] = {
    "smolvlm": Idefics3Processor,
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"), PatchProcessor),
}
"""Image-only processors by ``model_type``, for models whose full processor needs video packages."""


def picture_processor(folder: Path, config: Any) -> Any:
    """Load the processor of the model in ``folder``."""
    return PROCESSORS.get(config.model_type, AutoProcessor).from_pretrained(folder, **LOCAL)


class SquareProcessor:
    """Processor of a SmolVLM that reads one square, with the interface of transformers' processors."""

    def __init__(self, tokenizer: Any, config: Any) -> None:
        self.tokenizer, self.apply_chat_template = tokenizer, tokenizer.apply_chat_template
        self.side = int(config.vision_config.image_size)
        self._mark: str = tokenizer.convert_ids_to_tokens(config.image_token_id)
        self._marks = self._mark * (self.side // int(config.vision_config.patch_size) // int(config.scale_factor)) ** 2

    def __call__(self, images: Sequence[Sequence[Image.Image]], text: Sequence[str], return_tensors: str) -> dict[str, Tensor]:
        """Return ids, and pixels float32 [prompt, picture, channel, row, column] in [-1, 1]."""
        rows = torch.frombuffer(bytearray(images[0][0].tobytes()), dtype=torch.uint8).float().view(self.side, self.side, 3)
        ids = self.tokenizer([text[0].replace(self._mark, self._marks)], return_tensors=return_tensors)["input_ids"]
        return {"input_ids": ids, "pixel_values": (rows.permute(2, 0, 1) / 127.5 - 1).contiguous()[None, None]}


def square_reader(tokenizer: Any, name: str, model: Any) -> PictureReader:
    """Return a reader for a SmolVLM that reads one square picture."""
    processor = SquareProcessor(tokenizer, model.config)
    return PictureReader(processor, name, model, partial(pad_to_square, side=processor.side))
