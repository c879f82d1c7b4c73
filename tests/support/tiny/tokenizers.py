"""A small tokenizer that is trained on the spot."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = ["The quick brown fox jumps over the dog. ", "Grüße aus Köln, 東京 und 🎉! ", "def f(x):\n    return x  + 12\n"]


def byte_level_tokenizer(
    corpus: Sequence[str] = CORPUS, special: Sequence[str] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), **names: str
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer as GPT-2, SmolLM2, Qwen and Llama 3 have it; ``names`` are its special tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(list(corpus) * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)
