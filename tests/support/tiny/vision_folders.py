"""Tiny random models that read pictures, in folders as their repositories have them: weights, tokenizer, picture processor,
template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from tests.support.tiny.scenes import tiny_tokenizer
from tests.support.tiny.vision import QWEN_VISION, WINDOWS, turning

_QWEN_MARKS = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
_SMOL_MARKS = ["<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
_TEMPLATE = (
    "{% for message in messages %}<|user|>{% for part in message['content'] %}{% if part['type'] == 'image' %}PICTURE"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}<|assistant|>"
)
TEXT: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 1024, "pad_token_id": 0, "bos_token_id": None, "initializer_range": 0.2,
}  # fmt: skip


def tokenizer_with(marks: list[str]) -> tf.PreTrainedTokenizerFast:
    """Letters, and the marks of a family behind them."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    tokenizer.chat_template = None
    return tokenizer


def _stored(folder: Path, model: Any, tokenizer: Any, processor: Any, template: str, **settings: Any) -> Path:
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor.save_pretrained(folder)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    (folder / "processor_config.json").write_text(json.dumps(settings))
    return folder


def text_folder(folder: Path, seed: int = 1, tokenizer: Any = None) -> Path:
    """A language model with the letters of the others, as SmolLM2 has SmolVLM2's words and no token for pictures."""
    tokenizer = tiny_tokenizer() if tokenizer is None else tokenizer
    torch.manual_seed(seed)
    config = tf.LlamaConfig(**{**TEXT, "num_hidden_layers": 2}, vocab_size=len(tokenizer), eos_token_id=0)
    tf.LlamaForCausalLM(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def qwen_folder(folder: Path, seed: int = 0) -> Path:
    """A Qwen2.5-VL whose text never ends by itself."""
    tokenizer = tokenizer_with(_QWEN_MARKS)
    image, video, start, stop = (tokenizer.convert_tokens_to_ids(mark) for mark in _QWEN_MARKS)
    text = Qwen2_5_VLTextConfig(**TEXT, vocab_size=264, eos_token_id=263, rope_parameters=turning(2, 2, 2))
    config = tf.Qwen2_5_VLConfig(
        text_config=text.to_dict(), vision_config=QWEN_VISION | WINDOWS, image_token_id=image, video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=stop,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = tf.Qwen2_5_VLForConditionalGeneration(config)
    processor = Qwen2VLImageProcessorPil(patch_size=4, size={"shortest_edge": 16 * 16, "longest_edge": 32 * 32})
    marks = "<|vision_start|><|image_pad|><|vision_end|>"
    return _stored(folder, model, tokenizer, processor, _TEMPLATE.replace("PICTURE", marks))


def smolvlm_folder(folder: Path, seed: int = 0) -> Path:
    """A SmolVLM2 that sees tiles of 32 pixels, four tokens each, and the whole picture."""
    rows = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    tokenizer = tokenizer_with([*_SMOL_MARKS, *rows])
    text = tf.LlamaConfig(**TEXT, vocab_size=len(tokenizer), eos_token_id=tokenizer.convert_tokens_to_ids("<end_of_utterance>"))
    vision = tf.SmolVLMVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8
    )
    config = tf.SmolVLMConfig(
        text_config=text, vision_config=vision, image_token_id=tokenizer.convert_tokens_to_ids("<image>"), scale_factor=2,
        tie_word_embeddings=False, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = tf.SmolVLMForConditionalGeneration(config)
    processor = SmolVLMImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    return _stored(folder, model, tokenizer, processor, _TEMPLATE.replace("PICTURE", "<image>"), image_seq_len=4)
