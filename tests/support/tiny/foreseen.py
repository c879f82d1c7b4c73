"""A world in which a head foresees a text without fail: the text is what the head itself would write.

The states it is given are made from its own outputs, so that feeding on itself and being fed are the same thing; whoever reads
the head in another way foresees something else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specviz.drafting.networks.block_fill import BlockFill, FillConfig
from specviz.drafting.networks.eagle_head import EagleRuntime, PublishedEagleHead
from specviz.drafting.networks.head_config import HeadConfig, HeadConventions
from specviz.inspection.passages import Passage
from specviz.models.hub.published import Fit
from tests.support.referee.filled import uniform, weight

VOCAB, DRAFTED, HIDDEN, LAYERS = 60, 50, 24, 12
FIRST = 4
"""Tokens of the prompt."""


def target() -> Fit:
    return Fit("tiny", LAYERS, uniform("target embedding", (VOCAB, HIDDEN)), 0.5 * uniform("target head", (VOCAB, HIDDEN)))


def head(seed: str = "", own: bool = False, layers: int = 1, **conventions: object) -> PublishedEagleHead:
    """A random head; ``own`` gives it an embedding of its own. It feeds itself what it normalised unless told: else a random
    head's states grow until every token is the same."""
    said = {"taps": (3, 6, 9), "theta": 100.0, "feeds_normed": True, **conventions}
    how = HeadConventions(**said)
    config = HeadConfig(VOCAB, HIDDEN, HIDDEN, 4, 2, 8, 40, layers, True, how)
    tensors = {name: 1.5 * weight(seed + name, shape) for name, shape in config.shapes().items()}
    tensors["layers.0.hidden_norm.weight"] *= 3  # so that a normed residual is another one
    ids = (uniform(seed + "ids", (VOCAB - 2,)).argsort()[:DRAFTED] + 1).sort().values
    goal = target()
    embedding = uniform(seed + "embedding", (VOCAB, HIDDEN)) if own else goal.embedding
    return PublishedEagleHead(config, tensors, embedding, goal.head[ids], ids, "tiny")


def paired(**conventions: object) -> PublishedEagleHead:
    """An MTP layer on all of the vocabulary: it starts from the state behind the final norm and feeds itself such a one."""
    how = HeadConventions(**{"taps": (LAYERS,), "theta": 100.0, "feeds_normed": True, **conventions})
    config = HeadConfig(VOCAB, HIDDEN, HIDDEN, 4, 2, 8, 40, 1, False, how, head_norms=True, paired=True, gated=True)
    tensors = {name: 1.5 * weight("paired " + name, shape) for name, shape in config.shapes().items()}
    for name, value in tensors.items():
        if value.ndim == 1:
            entry = name in {"embedding_norm.weight", "state_norm.weight"}
            tensors[name] = value - float(how.centred_entry if entry else how.centred)
    goal = target()
    return PublishedEagleHead(config, tensors, goal.embedding, goal.head, None, "tiny")


def block(from_anchor: bool = False, causal: bool = False, **conventions: object) -> BlockFill:
    """A random block drafter of two layers."""
    how = HeadConventions(**{"taps": (3, 6, 9), "theta": 100.0, **conventions})
    config = FillConfig(
        VOCAB, HIDDEN, HIDDEN, 4, 2, 8, 40, 2, False, how, block=16, mask=1, from_anchor=from_anchor, causal=(causal,) * 2
    )
    goal = target()
    made = BlockFill(config, goal.embedding, goal.head)
    made.load_state_dict({name: 1.5 * weight("block " + name, shape) for name, shape in config.shapes().items()})
    return made.eval().requires_grad_(False)


def blocks(made_by: BlockFill, count: int = 3, tokens: int = 60) -> list[Passage]:
    """Texts whose next token ``made_by`` foresees at every place, from states at random."""
    return [_written(made_by, f"block text {number}", tokens) for number in range(count)]


def _begun(name: str, tokens: int) -> tuple[list[int], dict[int, Tensor]]:
    """A prompt at random with the token that follows, and states of so many more by layer."""
    ids = ((uniform(name, (FIRST + 1,)) + 1) / 2 * VOCAB).long().tolist()
    return ids, {layer: 3 * uniform(f"{name} {layer}", (FIRST + tokens, HIDDEN)) for layer in range(LAYERS + 1)}


def _written(made_by: BlockFill, name: str, tokens: int) -> Passage:
    network, (ids, states) = made_by.runtime(), _begun(name, tokens)
    fused = network.fuse(torch.cat([states[tap] for tap in made_by.config.taps], dim=-1))
    while len(ids) < FIRST + tokens:
        outputs = network.blocks(fused[: len(ids)], torch.tensor(ids), torch.tensor([len(ids) - 1]))
        ids.append(int(network.logits(outputs)[0, 0].argmax()))
    return Passage(torch.tensor(ids), FIRST, states, torch.zeros(len(ids) - FIRST, VOCAB))


def passages(made_by: PublishedEagleHead, count: int = 3, tokens: int = 60) -> list[Passage]:
    """Texts that ``made_by`` foresees at every place and every depth."""
    return [_passage(made_by, f"text {number}", tokens) for number in range(count)]


def _passage(made_by: PublishedEagleHead, name: str, tokens: int) -> Passage:
    runtime, taps, (ids, states) = EagleRuntime(made_by), made_by.config.taps, _begun(name, tokens)
    cache = runtime.open(FIRST + tokens)
    projection = made_by.tensors["fc.weight"]
    last: Tensor | None = None
    while len(ids) < FIRST + tokens:
        place = len(ids) - 2 if last is not None else -1
        for row in range(max(0, place), len(ids) - 1):
            if last is not None:
                if made_by.config.wide:
                    _set(states, taps, row, projection, last)
                else:
                    states[taps[0]][row] = last[0]
            given = torch.cat([states[tap][row] for tap in taps])[None]
            last = runtime(torch.tensor([ids[row + 1]]), runtime.fuse(given), torch.tensor([row]), cache, row, None)
        assert last is not None
        best = int(runtime.logits(last)[0].argmax())
        ids.append(best if made_by.draft_ids is None else int(made_by.draft_ids[best]))
    return Passage(torch.tensor(ids), FIRST, states, torch.zeros(len(ids) - FIRST, VOCAB))


def _set(states: dict[int, Tensor], taps: tuple[int, ...], row: int, projection: Tensor, wanted: Tensor) -> None:
    """Change the states at ``row`` as little as possible so that the projection gives ``wanted``."""
    given = torch.cat([states[tap][row] for tap in taps])
    given = given + torch.linalg.pinv(projection) @ (wanted[0] - projection @ given)
    for tap, part in zip(taps, given.split(HIDDEN), strict=True):
        states[tap][row] = part
