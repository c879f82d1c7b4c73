"""Our small vision-language model: its chat template and special tokens, and the loader of its one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast

from specviz.models.hub.packed_model import read_model, shipped_file
from specviz.models.loading_lock import exclusive_loading

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


def tokenizer_from(written: str) -> PreTrainedTokenizerFast:
    """The tokenizer with its chat template, from the JSON text of the tokenizers library."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(written),
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[USER, ASSISTANT, IMAGE],
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def load(path: Path, attention: str = "sdpa") -> tuple[Any, PreTrainedTokenizerFast]:
    """Load the model (float32, on the CPU) and its tokenizer. Raises ModelUnavailable if the file is missing or damaged."""
    with exclusive_loading():
        packed = read_model(shipped_file(path), AutoModelForImageTextToText, attn_implementation=attention)
    return packed.model.eval().requires_grad_(False), tokenizer_from(packed.tokenizer.to_str())
