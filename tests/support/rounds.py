"""The context of a round, for drafters and rules that are asked about one round alone, and what a session keeps of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.acceptance.residual import Residual, remaining
from specviz.acceptance.tree_probabilities import NodeTable
from specviz.engine.interfaces import Context, Proposal
from specviz.engine.sampling import Noise, Warp


def context(
    ids: Sequence[int] = (5, 1), number: int = 0, *, prompt: int | None = None, warp: Warp | None = None, seed: int = 0,
    room: int = 100, story: bool = True, noise: Any = None,
) -> Context:  # fmt: skip
    """Round ``number`` after ``ids``, with ``room`` free places. By default all ids are the prompt, and the run is greedy."""
    places = len(ids) if prompt is None else prompt
    return Context(ids, places, number, warp or Warp(), noise or Noise(seed), torch.device("cpu"), room, story)


def entries(session: Any) -> list[tuple[Tensor, Tensor]]:
    """Committed keys and values of every layer that attends, [batch, head, kv, size] each."""
    return [layer.committed() for layer in session._cache.layers if layer.is_initialized]


def residual(p: Tensor, proposal: Proposal | None, offered: Sequence[int] = ()) -> Residual:
    """The residual at a node with distribution ``p``; without a ``proposal``, the tokens ``offered`` are certain."""
    if proposal is None:
        proposal, sampled = Proposal(torch.ones(len(offered)), torch.tensor(offered)), False
    else:
        sampled = True
    at_ids = p if proposal.ids is None else p[proposal.ids]
    return remaining(p, NodeTable(at_ids, proposal.probability, proposal.ids, None), sampled)
