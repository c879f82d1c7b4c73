"""A tiny random masked language model on a tiny random target, and a tiny n-gram model."""

from __future__ import annotations

import numpy as np
import torch

from specviz.drafting.memory.ngram_model import NgramModel
from specviz.drafting.networks.masked_lm import MaskedLM
from specviz.drafting.networks.small_lm import SmallConfig
from specviz.targets.text import TextTarget
from specviz.training.families.ngrams import counted


def masked_lm(target: TextTarget, draft: int = 40, window: int = 64, seed: int = 5, scale: float = 0.3) -> MaskedLM:
    """A random network for ``target`` whose draft vocabulary leaves a few tokens out."""
    torch.manual_seed(seed)
    embedding = target.model.get_input_embeddings().weight.detach()
    config = SmallConfig(
        vocab_size=target.vocab_size, hidden=embedding.shape[1], draft_vocab=draft, width=16, layers=2, heads=2,
        inner=32, window=window,
    )  # fmt: skip
    model = MaskedLM(config, embedding, torch.randperm(target.vocab_size)[:draft].sort().values)
    for weight in model.parameters():
        weight.data.normal_(std=scale)
    return model.to(target.dtype).to(target.device).eval().requires_grad_(False)


def ngrams(vocab: int = 48, length: int = 4000, seed: int = 0) -> NgramModel:
    """Counted in a text in which a token is mostly followed by the next two."""
    generator = np.random.default_rng(seed)
    text = np.zeros(length, np.int64)
    for place in range(1, length):
        text[place] = (text[place - 1] + generator.choice([1, 2, 5], p=[0.6, 0.3, 0.1])) % vocab
    return NgramModel(counted([text], np.arange(0, vocab, 1), 2, 2))
