"""Prompt of a vision-language model: token ids, pixels, and the positions of the picture's tokens.

Two readers: our own small model's (a square of fixed size), and one for any model with its own processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jinja2 import TemplateError
from PIL import Image
from torch import Tensor

from specviz.errors import BadInput, ContextFull, ModelUnavailable
from specviz.models.text.load import context_length_of
from specviz.models.vision.pictures import on_white

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, as shares of the picture's width and height."""


@dataclass(frozen=True)
class PictureQuestion:
    """Inputs of a model's prefill. Axis names: ``token`` (of the prompt), ``visual`` (tokens that stand for the picture).

    ``inputs`` are the model's keyword arguments other than ``input_ids``: pixels, grids, token types; on the device, floats in
    the model's dtype. ``token_keywords`` names those with one entry per prompt token.
    """

    ids: tuple[int, ...]
    inputs: Mapping[str, Tensor]
    visual: tuple[int, ...]
    """Positions in ``ids`` whose embedding is a piece of the picture."""
    hidden: tuple[int, ...]
    """Positions that a text-only drafter leaves out: ``visual``, and the markers around them, meaningless alone."""
    boxes: tuple[Box, ...]
    """Boxes [visual]: the part of ``picture`` that each visual token stands for."""
    grid: tuple[int, int]
    """Rows and columns of the visual tokens; (0, 0) where they are several tiles, not one grid."""
    picture: Image.Image
    """The picture in RGB, padded to the model's shape; for display."""
    token_keywords: tuple[str, ...] = ()

    @property
    def text(self) -> tuple[int, ...]:
        """Positions in ``ids`` that a text-only drafter keeps."""
        left_out = frozenset(self.hidden)
        return tuple(place for place in range(len(self.ids)) if place not in left_out)


class PictureReader(Protocol):
    """Prepares a picture and a question for one model. Shared between runs and their threads."""

    def __call__(self, picture: Image.Image, question: str) -> PictureQuestion:
        """Return the prompt. ``picture`` is any PIL image, already limited in size and with its EXIF orientation applied.
        Raises BadInput or ContextFull."""


def boxes_of_grid(rows: int, columns: int, area: Box = (0.0, 0.0, 1.0, 1.0)) -> tuple[Box, ...]:
    """Boxes of a row-major grid over ``area``."""
    left, top, right, bottom = area
    wide, high = (right - left) / columns, (bottom - top) / rows
    return tuple(
        (left + column * wide, top + row * high, left + (column + 1) * wide, top + (row + 1) * high)
        for row in range(rows)
        for column in range(columns)
    )


def pad_to_square(picture: Image.Image, side: int) -> Image.Image:
    """The picture in RGB [side, side], as large as fits, on white."""
    image = on_white(picture)
    share = side / max(image.size)
    size = (max(1, round(image.width * share)), max(1, round(image.height * share)))
    if size != image.size:
        image = image.resize(size, Image.Resampling.BICUBIC)
    canvas = Image.new("RGB", (side, side), "white")
    canvas.paste(image, ((side - size[0]) // 2, (side - size[1]) // 2))
    return canvas


def pixels(picture: Image.Image) -> Tensor:
    """Convert an RGB picture to float32 [channel, row, column] in -1 … 1."""
    flat = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).float()
    return (flat.view(picture.height, picture.width, 3).permute(2, 0, 1) / 127.5 - 1).contiguous()


def valid_question(question: str) -> str:
    """Return the question without surrounding blanks. Raises BadInput if it is empty or cannot be tokenized."""
    if not question.strip():
        raise BadInput("There is no question. Type one, such as: Describe the picture.")
    try:
        question.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise BadInput(f"The question's character {problem.start} is half of a surrogate pair. Remove it.") from None
    return question.strip()


def refuse_too_long(ids: tuple[int, ...], context_length: int, name: str) -> tuple[int, ...]:
    """Return the ids. Raises ContextFull if the model cannot read them all."""
    if len(ids) >= context_length:
        raise ContextFull(
            f"Picture and question are {len(ids)} tokens; {name} reads at most {context_length}, its own answer included. "
            "Ask a shorter question or use a smaller picture."
        )
    return ids


class SquareReader:
    """Reader for a SmolVLM that sees a single square image, ``side`` pixels and ``grid`` visual tokens on a side."""

    def __init__(self, tokenizer: Any, name: str, model: Any) -> None:
        config = model.config
        self.tokenizer, self.name, self.image_token_id = tokenizer, name, int(config.image_token_id)
        self.side = int(config.vision_config.image_size)
        self.grid = self.side // int(config.vision_config.patch_size) // int(config.scale_factor)
        self.context_length, self.device, self.dtype = context_length_of(model), model.device, model.dtype

    def __call__(self, picture: Image.Image, question: str) -> PictureQuestion:
        content = [{"type": "image"}, {"type": "text", "text": plain_words(self.tokenizer, valid_question(question))}]
        written = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        count = self.grid**2
        mark = self.tokenizer.convert_ids_to_tokens(self.image_token_id)
        ids = tuple(self.tokenizer(written.replace(mark, mark * count, 1), add_special_tokens=False)["input_ids"])
        visual = tuple(place for place, token in enumerate(refuse_too_long(ids, self.context_length, self.name))
                       if token == self.image_token_id)  # fmt: skip
        square = pad_to_square(picture, self.side)
        inputs = {"pixel_values": pixels(square)[None, None].to(self.device, self.dtype)}
        boxes = boxes_of_grid(self.grid, self.grid)
        return PictureQuestion(ids, inputs, visual, visual, boxes, (self.grid, self.grid), square)


def plain_words(tokenizer: Any, question: str) -> str:
    """Put spaces into any special token spelled out in the question, so that typed text cannot be tokenized as an image token."""
    for token in tokenizer.all_special_tokens:
        question = question.replace(token, " ".join(token))
    return question


class ProcessorReader:
    """Reader for any model whose repository has a processor, using its own chat template and image preprocessing."""

    def __init__(self, processor: Any, name: str, model: Any) -> None:
        self.processor, self.name, self.config = processor, name, model.config
        self.context_length, self.device, self.dtype = context_length_of(model), model.device, model.dtype

    def __call__(self, picture: Image.Image, question: str) -> PictureQuestion:
        tokenizer = self.processor.tokenizer
        image = on_white(picture)
        inputs = self._process(image, plain_words(tokenizer, valid_question(question)))
        ids = tuple(inputs.pop("input_ids")[0].tolist())
        visual = tuple(place for place, token in enumerate(refuse_too_long(ids, self.context_length, self.name))
                       if token == self.config.image_token_id)  # fmt: skip
        if not visual:
            raise ModelUnavailable(f"The processor of {self.name} made no picture tokens. Choose another model.")
        # Rows and columns of tiles: a number in nested lists, or a tensor; missing without tiles.
        rows, columns = (int(torch.as_tensor(inputs.pop(name, 0)).flatten()[:1].sum()) for name in ("rows", "cols"))
        inputs.pop("attention_mask", None)
        grid, boxes = self._grid_and_boxes(len(visual), inputs, rows, columns, image)
        moved = {
            key: value.to(self.device, self.dtype if value.is_floating_point() else value.dtype)
            for key, value in inputs.items()
            if isinstance(value, Tensor)
        }
        per_token = tuple(key for key, value in moved.items() if value.ndim == 2 and value.shape[1] == len(ids))
        marks = {getattr(self.config, f"vision_{end}_token_id", None) for end in ("start", "end")}
        hidden = tuple(place for place, token in enumerate(ids) if token in marks | {self.config.image_token_id})
        return PictureQuestion(ids, moved, visual, hidden, boxes, grid, image, per_token)

    def _process(self, picture: Image.Image, question: str) -> dict[str, Any]:
        content = [{"type": "image"}, {"type": "text", "text": question}]
        try:
            written = self.processor.apply_chat_template(
                [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
            )
        except (TemplateError, TypeError, ValueError, AttributeError):
            # A base model such as PaliGemma has no template: its processor puts the picture first.
            written = question
        try:
            # The picture is a list in a list: one prompt with one picture.
            return dict(self.processor(images=[[picture]], text=[written], return_tensors="pt"))
        except (TypeError, ValueError, IndexError) as problem:
            reason = (str(problem).splitlines() or [type(problem).__name__])[0]
            raise ModelUnavailable(f"The processor of {self.name} does not take this picture ({reason}).") from problem

    def _grid_and_boxes(
        self, count: int, inputs: dict[str, Any], rows: int, columns: int, picture: Image.Image
    ) -> tuple[tuple[int, int], tuple[Box, ...]]:
        """Grid and boxes of the visual tokens: the grid that the processor reports, tiles followed by the whole picture, or one
        square."""
        if "image_grid_thw" in inputs:
            merge = int(self.config.vision_config.spatial_merge_size)
            _, high, wide = inputs["image_grid_thw"][0].tolist()
            return (high // merge, wide // merge), boxes_of_grid(high // merge, wide // merge)
        tiles = rows * columns + 1
        side = round((count / tiles) ** 0.5)
        if side * side * tiles != count:
            return (0, 0), ((0.0, 0.0, 1.0, 1.0),) * count
        if tiles == 1:
            return (side, side), boxes_of_grid(side, side, self._cropped(picture))
        parts = [box for area in boxes_of_grid(rows, columns) for box in boxes_of_grid(side, side, area)]
        return (0, 0), (*parts, *boxes_of_grid(side, side))

    def _cropped(self, picture: Image.Image) -> Box:
        """The middle square if the processor crops to it, else the whole picture."""
        if not getattr(getattr(self.processor, "image_processor", None), "do_center_crop", False):
            return (0.0, 0.0, 1.0, 1.0)
        wide, high = picture.size
        across, down = min(1.0, high / wide), min(1.0, wide / high)
        return ((1 - across) / 2, (1 - down) / 2, (1 + across) / 2, (1 + down) / 2)
