"""The shipped small vision-language model: chat template, special tokens, loader, and warnings.

Pictures of which the model says that it knows nothing, other pictures than the examples, and unknown words get a warning.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast

from specviz.models.cache import exclusive_loading
from specviz.models.hub.packed_model import read_model, shipped_file
from specviz.models.text.text import quoted
from specviz.models.vision.pictures import open_picture
from specviz.paths import SCENES

NAME = "scenes-vlm"
IMAGE, USER, ASSISTANT, END = "<image>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL = (END, USER, ASSISTANT, IMAGE)
"""Special tokens by id, from 0."""
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}<|user|>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% else %}<|assistant|>{{ message['content'] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NOTHING_KNOWN = "I see nothing that I know."
"""Beginning of the description of a picture without known things."""
_WORD = re.compile(r"[^\W\d_]+")


def tokenizer_from(written: str) -> PreTrainedTokenizerFast:
    """Return the tokenizer with its chat template; ``written`` is the JSON of the tokenizers library."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(written),
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[USER, ASSISTANT, IMAGE],
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def load(path: Path) -> tuple[Any, PreTrainedTokenizerFast]:
    """Load the model (float32, on the CPU) and its tokenizer. Raises ModelUnavailable if the file is missing or damaged."""
    with exclusive_loading():
        packed = read_model(shipped_file(path), AutoModelForImageTextToText)
    return packed.model.eval().requires_grad_(False), tokenizer_from(packed.tokenizer.to_str())


def admits(answer: str) -> bool:
    """Whether an answer says that the picture shows nothing known."""
    return answer.lstrip().startswith(NOTHING_KNOWN.rstrip("."))


def unknown_words(tokenizer: Any, question: str) -> list[str]:
    """Return the distinct words of a question that are not single tokens, and so were rare in training."""

    def is_token(text: str) -> bool:
        return len(tokenizer.encode(text, add_special_tokens=False)) == 1

    words = dict.fromkeys(_WORD.findall(question))
    return [word for word in words if not any(map(is_token, (word, f" {word}", word.capitalize(), f" {word.lower()}")))]


@cache
def _examples() -> frozenset[str]:
    return frozenset(_digest(open_picture(path.read_bytes()).image) for path in SCENES.glob("*.png"))


def _digest(picture: Image.Image) -> str:
    return hashlib.sha256(repr(picture.size).encode() + picture.convert("RGB").tobytes()).hexdigest()


@torch.inference_mode()
def finds_nothing(model: Any, tokenizer: Any, prompt: Sequence[int], visual: Sequence[Tensor]) -> bool:
    """Whether the greedy answer begins with ``NOTHING_KNOWN``.

    ``visual``: visual tokens [visual, hidden] of each picture.
    """
    ids = torch.tensor([[*prompt, *tokenizer.encode(NOTHING_KNOWN, add_special_tokens=False)]], device=model.device)
    rows = model.get_input_embeddings()(ids)
    rows[ids == model.config.image_token_id] = torch.cat(list(visual))
    said = model(inputs_embeds=rows).logits[0, :-1].argmax(-1)
    return torch.equal(said[len(prompt) - 1 :], ids[0, len(prompt) :])


def warnings(model: str, tokenizer: Any, question: str, picture: Image.Image, nothing: bool = False) -> tuple[str, ...]:
    """Return warnings about a picture outside the example scenes, and about unknown words in the question.

    ``nothing``: whether the model finds nothing that it knows.
    """
    warnings = []
    if nothing:
        warnings.append(f"{model} finds nothing in the picture that it knows, and says so: it knows emoji and plain shapes only.")
    elif _digest(picture) not in _examples():
        warnings.append(f"{model} knows emoji and plain shapes only: whatever else a picture shows, it leaves out or invents.")
    if unknown := unknown_words(tokenizer, question):
        warnings.append(f"{model} learned no question with {quoted(unknown)}, and answers a different one.")
    return tuple(warnings)
