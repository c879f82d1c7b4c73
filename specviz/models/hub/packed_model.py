"""Single-file models: int8 weights, config and tokenizer, unpacked to a folder that transformers loads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from specviz.drafting.networks.weights import read_weights, write_weights
from specviz.errors import ModelUnavailable
from specviz.models.cache import exclusive_loading
from specviz.models.text.text import tokenizer_hash

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END = "<|im_end|>"
HEAD = "lm_head.weight"
BASE_KEY, TEACHER_KEY, LEARNED_FROM = "changes", "imitates", "target"
"""Metadata keys for the file that the weights change, imitate or learned from. The values are those of :func:`named`."""


@dataclass(frozen=True)
class PackedModel:
    """Contents of a packed file. ``card``: metadata that describes how the model was made."""

    model: Any
    tokenizer: Tokenizer
    card: dict[str, str]


def write_model(path: Path, model: Any, tokenizer: Tokenizer, card: Mapping[str, str]) -> None:
    """Write ``model`` with its config and tokenizer. A head tied to the embedding is stored once."""
    tensors = dict(model.state_dict())
    if model.get_output_embeddings().weight is model.get_input_embeddings().weight:
        del tensors[HEAD]
    path.parent.mkdir(parents=True, exist_ok=True)
    config = {**model.config.to_diff_dict(), "model_type": model.config.model_type}
    write_weights(path, tensors, {**card, "config": json.dumps(config), "tokenizer": tokenizer.to_str()})


def read_model(path: Path, kind: Any = AutoModelForCausalLM) -> PackedModel:
    """Read the model in ``path`` in float32; ``kind`` is the transformers auto class that builds it.

    Raises ModelUnavailable if the file is damaged or not a packed model.
    """
    tensors, card = read_weights(path)
    if not {"config", "tokenizer"} <= set(card):
        raise ModelUnavailable(f"{path.name} is not a packed model: choose a file written by this app's training.")
    fields = json.loads(card.pop("config"))
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = kind.from_config(config, dtype=torch.float32)
    try:
        missing, unexpected = model.load_state_dict(tensors, strict=False)
    except RuntimeError as problem:  # a tensor of the wrong shape
        raise ModelUnavailable(f"{path.name} does not hold this model's weights: fetch the file again.") from problem
    if unexpected or set(missing) - {HEAD}:
        raise ModelUnavailable(f"{path.name} does not hold this model's weights: fetch the file again.")
    if missing:
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    return PackedModel(model, Tokenizer.from_str(card.pop("tokenizer")), card)


def shipped_file(path: Path) -> Path:
    """Return ``path``, a file of shipped weights. Raises ModelUnavailable, with the command that trains them, if missing."""
    if not path.is_file():
        raise ModelUnavailable(
            f"The weights {path.name} are missing from {path.parent}: restore them from the repository, or train them with "
            f"`python -m specviz train {path.stem}`."
        )
    return path


def card_in(path: Path) -> dict[str, str]:
    """Return a file's metadata without reading its weights, or {} if the file is missing."""
    if not path.is_file():
        return {}
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


def digest(file: Path) -> str:
    """Return the first 16 hex digits of a file's SHA-256."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def named(file: Path) -> str:
    """Return a file's identification in metadata: its name and :func:`digest`."""
    return f"{file.name} {digest(file)}"


def refuse_outdated(path: Path, base: Path) -> None:
    """Raise ModelUnavailable if the weights in ``path`` were trained for another version of ``base``."""
    card = card_in(path)
    if not base.is_file() or named(base) not in [card.get(key) for key in (BASE_KEY, TEACHER_KEY, LEARNED_FROM)]:
        raise ModelUnavailable(
            f"{path.name} was trained for another version of {base.name}: retrain it with "
            f"`python -m specviz train {path.stem}`, or name another draft."
        )


def tokenizer_hash_in(path: Path) -> str:
    """Return the hash of the tokenizer in a file, or "" if there is none."""
    written = card_in(path).get("tokenizer", "")
    return tokenizer_hash(PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(written))) if written else ""


def unpack(path: Path, folder: Path) -> tuple[str, ...]:
    """Unpack the model in ``path`` into ``folder`` in the form that transformers saves: safetensors, config and tokenizer."""
    with exclusive_loading():
        packed = read_model(path)
        context = getattr(packed.model.config, "max_position_embeddings", None) or 1 << 20
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=packed.tokenizer, eos_token=END, pad_token=END, chat_template=TEMPLATE, model_max_length=context
        )  # fmt: skip
        packed.model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return ()
