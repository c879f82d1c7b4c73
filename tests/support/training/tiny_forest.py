"""A tiny target, a drafter on its features, and dialogues whose answers are the target's own greedy ones."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from specviz.drafting.networks.eagle_head import EagleHead
from specviz.targets.text import TextTarget
from specviz.training.data import Dialogues
from specviz.training.families.feature import sample, shape_of, start
from specviz.training.features import FeatureStore
from tests.support.tiny.text import tiny_llama
from tests.support.training.tiny_training import END, MARKERS

VOCAB, HIDDEN, TAPS = 40, 32, (1, 1, 0)
ANSWER = 40


@cache
def target() -> TextTarget:
    return TextTarget(tiny_llama(dtype=torch.float32, vocab=VOCAB), "tiny", ())


@cache
def dialogues(count: int = 24) -> Dialogues:
    """Questions of five tokens, answers of forty: what the target says when it always takes its best token."""
    generator = np.random.default_rng(0)
    turns = []
    for _ in range(count):
        asked = [*generator.integers(5, VOCAB, 4).tolist(), END]
        whole = torch.tensor([[*MARKERS.prefix, *asked]])
        made = target().model.generate(whole, max_new_tokens=ANSWER, do_sample=False, pad_token_id=0)
        turns.append([*asked, *made[0, whole.shape[1] :].tolist()])
    lengths = [len(turn) for turn in turns]
    starts = np.concatenate(([0], np.cumsum(lengths)))
    tokens = np.array([token for turn in turns for token in turn])
    return Dialogues(tokens, starts, np.full(count, 5), np.zeros(count, dtype=np.float32))


@cache
def store() -> FeatureStore:
    return FeatureStore(target().model, dialogues(), MARKERS, (*TAPS, 2))


def drafter(noise: float = 0.0, ids: tuple[int, ...] | None = None) -> EagleHead:
    """A drafter that starts from the target, blurred by ``noise``."""
    model = target().model
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    config = shape_of(model.config, TAPS, wide=True)
    net = EagleHead(config, embedding, head, None if ids is None else torch.tensor(ids))
    start(net, model, sample(store(), list(range(8)), embedding, slice(0, 3)))
    torch.manual_seed(5)
    with torch.no_grad():
        for value in net.parameters():
            value += noise * value.std() * torch.randn_like(value) if value.ndim == 2 else 0
    return net.requires_grad_(False)
