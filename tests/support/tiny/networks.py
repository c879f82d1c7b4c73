"""Tiny random drafters of every kind on a tiny random target, loud enough that what they draft depends on all they read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specviz.drafting.memory.ngram_model import NgramModel
from specviz.drafting.networks.block_fill import BlockFill, FillConfig
from specviz.drafting.networks.block_net import BlockConfig, BlockNet
from specviz.drafting.networks.head_config import HeadConventions
from specviz.drafting.networks.masked_lm import MaskedLM
from specviz.drafting.networks.parallel_net import ParallelConfig, ParallelNet
from specviz.drafting.networks.recurrent_net import RecurrentConfig, RecurrentNet
from specviz.drafting.networks.small_lm import SmallConfig, SmallLM
from specviz.methods.hedgespec import DOMAINS
from specviz.targets.text import TextTarget
from specviz.training.families.ngrams import count_ngrams

TAP = 2
"""Of block networks."""


def sizes(model: Any) -> dict[str, Any]:
    """Those of a network on the features of ``model``."""
    text = model.config.get_text_config()
    own = {"heads": 4, "kv_heads": 2, "head_size": 8, "inner": 48, "window": 8}
    return {"vocab_size": text.vocab_size, "hidden": text.hidden_size, **own}


def shared(model: Any) -> tuple[Tensor, Tensor]:
    """Embedding and head of a target's model."""
    return model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach()


def some(vocab: int, support: int) -> Tensor:
    """A draft vocabulary of so many tokens."""
    return torch.randperm(vocab)[:support].sort().values


def by_width(scale: float) -> Callable[[Tensor], float]:
    """The spread of a matrix whose outputs are as large as its inputs, times ``scale``."""
    return lambda weight: scale * weight.shape[-1] ** -0.5


def filled(net: nn.Module, target: TextTarget, std: float | Callable[[Tensor], float] = 0.3, vectors: float | None = None) -> Any:
    """The network where the target is, its matrices drawn with this spread, its ``vectors`` with another; 0 leaves them."""
    for weight in net.parameters():
        spread = (std(weight) if callable(std) else std) if weight.ndim > 1 or vectors is None else vectors
        if spread:
            # Drawn on the CPU, so that a network is the same on every device.
            weight.data.copy_(torch.empty(weight.shape, dtype=weight.dtype).normal_(std=spread))
    return net.to(target.dtype).to(target.device).eval().requires_grad_(False)


def arm(target: TextTarget, seed: int, draft: int = 40) -> SmallLM:
    """A small language model over some of the vocabulary."""
    torch.manual_seed(seed)
    embedding, _ = shared(target.model)
    config = SmallConfig(*embedding.shape, draft_vocab=draft, width=16, layers=2, heads=2, inner=24, window=64)
    net = SmallLM(config, embedding, some(len(embedding), draft)).to(target.dtype)
    net.rotary = net.rotary.to(target.dtype)
    return filled(net, target, by_width(2.0), 0)


def arms(target: TextTarget) -> dict[str, SmallLM]:
    """One by domain."""
    return {name: arm(target, seed) for seed, name in enumerate(DOMAINS)}


def small(target: TextTarget, support: int = 30) -> SmallLM:
    """The small draft model: the first tokens of the vocabulary alone."""
    torch.manual_seed(5)
    embedding, _ = shared(target.model)
    config = SmallConfig(*embedding.shape, draft_vocab=support, width=16, layers=4, heads=2, inner=32, window=64)
    return filled(SmallLM(config, embedding, torch.arange(support)).to(embedding.dtype), target)


def block_net(target: TextTarget, block: int = 2, seed: int = 5, draft: int = 40, scale: float = 0.3) -> BlockNet:
    torch.manual_seed(seed)
    shape = BlockConfig(
        vocab_size=target.vocab_size, hidden=target.config.hidden_size, heads=4, kv_heads=2, head_size=8, inner=48, tap=TAP,
        draft_vocab=draft, block=block, width=24,
    )  # fmt: skip
    return filled(BlockNet(shape, *shared(target.model), some(target.vocab_size, draft)), target, scale)


def block_fill(target: TextTarget, kind: str = "dflash", draft: int = 40, seed: int = 5, **own: Any) -> BlockFill:
    """DFlash as z-lab publishes it, with a window in one layer; or DSpark, which corrects its block and predicts acceptance."""
    torch.manual_seed(seed)
    embedding, head = shared(target.model)
    vocab, hidden = embedding.shape
    windows, more = (6, 0), {"causal": (True, False), **own}
    if kind == "dspark":
        windows, more = (
            (),
            {"from_anchor": True, "markov": "vanilla", "rank": 4, "confidence": True, "confidence_reads_token": True, **own},
        )
    config = FillConfig(
        vocab_size=vocab, hidden=hidden, target_hidden=hidden, heads=4, kv_heads=2, head_size=8, inner=48, layers=2, wide=False,
        how=HeadConventions((1, 2), windows=windows), block=5, mask=1, draft_vocab=0 if draft == vocab else draft, **more,
    )  # fmt: skip
    ids = None if draft == vocab else some(vocab, draft)
    return filled(BlockFill(config, embedding, head, ids), target, by_width(1.5), 1.0)


def masked_lm(target: TextTarget, draft: int = 40, window: int = 64, seed: int = 5, scale: float = 0.3) -> MaskedLM:
    torch.manual_seed(seed)
    embedding, _ = shared(target.model)
    config = SmallConfig(*embedding.shape, draft_vocab=draft, width=16, layers=2, heads=2, inner=32, window=window)
    return filled(MaskedLM(config, embedding, some(target.vocab_size, draft)), target, scale)


def recurrent_net(target: TextTarget, draft: int = 40, seed: int = 5) -> RecurrentNet:
    torch.manual_seed(seed)
    embedding, head = shared(target.model)
    config = RecurrentConfig(*embedding.shape, target.config.num_hidden_layers, entry=24, word=16, width=20)
    net = RecurrentNet(config, embedding, head, some(len(embedding), draft)).to(target.dtype)
    return filled(net, target, by_width(1.5), 1.0)


def parallel_net(target: TextTarget, count: int = 4) -> ParallelNet:
    """Medusa heads: of 48 tokens ten are drafted at depth 1, so some are right."""
    torch.manual_seed(3)
    net = ParallelNet(ParallelConfig(32, count, 2), shared(target.model)[1].cpu()).to(target.dtype)
    return filled(net, target, 0.2)


def ngrams(vocab: int = 48, length: int = 4000, seed: int = 0) -> NgramModel:
    """Counted in a text in which a token is mostly followed by the next two."""
    generator = np.random.default_rng(seed)
    text = np.zeros(length, np.int64)
    for place in range(1, length):
        text[place] = (text[place - 1] + generator.choice([1, 2, 5], p=[0.6, 0.3, 0.1])) % vocab
    return NgramModel(count_ngrams([text], np.arange(0, vocab, 1), 2, 2))
