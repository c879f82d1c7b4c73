"""The context of a round, for drafters and rules that are asked about one round alone, and what a session keeps of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.acceptance.residual import Residual, remaining
from specviz.acceptance.tree_probabilities import NodeTable
from specviz.engine.interfaces import Context, Draft, Proposal, Round, TargetPass, Verdict
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import DraftTree


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


def committed_round(tokens: Sequence[int], hidden: dict[int, Tensor], root: int = 0) -> Round:
    """A round whose path took all but the last of ``tokens``, with their inputs' ``hidden`` states [input, hidden] by tap; its
    tree held one more node, which was not taken and whose states nobody should read."""
    count = len(tokens)
    tree = DraftTree.of([root, *tokens[:-1], 7], [*range(-1, count - 1), 0])
    rows = {tap: torch.cat((one, torch.full_like(one[:1], 1e6))) for tap, one in hidden.items()}
    path = tuple(range(1, count))
    verdict = Verdict("greedy", path, tokens[-1], "target", ("root",), (0, *path))
    return Round(context([0]), Draft(tree), TargetPass(torch.empty(count + 1, 48), rows), verdict, tokens)
