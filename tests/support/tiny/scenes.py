"""A tiny random SmolVLM of scenes, and a tokenizer of bytes."""

from __future__ import annotations

import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from specviz.models.vision import scenes


def tiny_tokenizer() -> tf.PreTrainedTokenizerFast:
    letters = {token: place for place, token in enumerate([*scenes.SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    made = Tokenizer(models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(scenes.SPECIAL))
    return scenes.tokenizer_from(made.to_str())


def tiny_scenes(seed: int = 0) -> tf.SmolVLMForConditionalGeneration:
    torch.manual_seed(seed)
    text = tf.LlamaConfig(
        vocab_size=260, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, eos_token_id=0, bos_token_id=None, pad_token_id=0,
        tie_word_embeddings=True,
    )  # fmt: skip
    vision = tf.SmolVLMVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=4
    )
    config = tf.SmolVLMConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=3,
        scale_factor=2,
        tie_word_embeddings=True,
        pad_token_id=0,
    )
    return tf.SmolVLMForConditionalGeneration(config).eval()
