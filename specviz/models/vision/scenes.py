"""File format of our small vision-language model: configuration, tokenizer and weights (row-wise int8) in one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, SmolVLMConfig, SmolVLMForConditionalGeneration

from specviz.drafting.networks.weights import read_weights, write_weights
from specviz.errors import ModelUnavailable
from specviz.models.loading_lock import exclusive_loading

NAME = "scenes-vlm"
IMAGE, USER, ASSISTANT, END = "<image>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL = (END, USER, ASSISTANT, IMAGE)
"""By id, from 0."""
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


def save(model: Any, tokenizer: PreTrainedTokenizerFast, path: Path, card: Mapping[str, str]) -> None:
    """Write configuration, tokenizer and weights. The output head is the embedding and is stored once."""
    tensors = dict(model.state_dict())
    tensors.pop("lm_head.weight", None)
    path.parent.mkdir(parents=True, exist_ok=True)
    config = json.dumps(model.config.to_dict())
    write_weights(path, tensors, {**card, "config": config, "tokenizer": tokenizer.backend_tokenizer.to_str()})


def load(path: Path, attention: str = "sdpa") -> tuple[SmolVLMForConditionalGeneration, PreTrainedTokenizerFast]:
    """Model (float32, on the processor) and tokenizer. Raises ModelUnavailable where the file is missing or another one."""
    if not path.is_file():
        raise ModelUnavailable(
            f"The weights {path.name} are missing from {path.parent}: get them with the project, or make them with "
            "`python -m specviz train scenes_vlm`."
        )
    tensors, card = read_weights(path)
    if not {"config", "tokenizer"} <= card.keys():
        raise ModelUnavailable(f"{path.name} is no vision-language model: choose a file written by this app's training.")
    with exclusive_loading():
        config = SmolVLMConfig.from_dict(json.loads(card["config"]))
        config._attn_implementation = attention
        model = SmolVLMForConditionalGeneration(config)
    tensors["lm_head.weight"] = tensors["model.text_model.embed_tokens.weight"]
    try:
        model.load_state_dict(tensors)
    except RuntimeError as problem:
        raise ModelUnavailable(f"{path.name} does not hold this model's weights: fetch the file again.") from problem
    model.tie_weights()
    return model.eval().requires_grad_(False), tokenizer_from(card["tokenizer"])
