"""Successor matrix: for every token, the top eight next tokens when the target last scored that token, accepted or not.

Luo et al., "Turning Trash into Treasure" (arXiv 2408.08696).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Draft, Round
from specviz.engine.tree import DraftTree, TreeShape
from specviz.trace.notes.drafts import SuccessorRow, SuccessorsNote

WIDTH = 8
_GROUP = 64
SHOWN = 12
"""Maximum number of rows in a note."""


def top_successors(logits: Tensor, width: int = WIDTH) -> Tensor:
    """Return the ids of the ``width`` largest of ``logits`` [node, vocab], int64 [node, width].

    On a CPU, two passes are several times faster than one top-k over the vocabulary. The top logits lie in the groups with the
    largest maxima. A group has every ``groups``-th token, since reducing over the outer axis is faster. The order of equal logits
    is unspecified.
    """
    nodes, vocab = logits.shape
    groups = vocab // _GROUP
    if groups < 4 * width:
        return logits.topk(min(width, vocab), dim=-1).indices
    grouped_size = groups * _GROUP
    grouped = logits[:, :grouped_size].view(nodes, _GROUP, groups)
    best = grouped.amax(1).topk(width, dim=-1).indices
    inside = grouped.gather(2, best[:, None, :].expand(-1, _GROUP, -1)).reshape(nodes, -1)
    ids = (best[:, None, :] + groups * torch.arange(_GROUP, device=logits.device)[:, None]).reshape(nodes, -1)
    if grouped_size < vocab:
        inside = torch.cat([inside, logits[:, grouped_size:]], -1)
        ids = torch.cat([ids, torch.arange(grouped_size, vocab, device=logits.device).expand(nodes, -1)], -1)
    return ids.gather(1, inside.topk(width, dim=-1).indices)


class SuccessorMatrix:
    """Matrix of successors. ``rows``: int32 [vocab, 8] on the host. ``known``: rows written so far. May be kept across runs."""

    def __init__(self, vocab_size: int) -> None:
        self.rows = torch.zeros(vocab_size, min(WIDTH, vocab_size), dtype=torch.int32)
        self.known: set[int] = set()

    def write(self, tokens: Sequence[int], best: Tensor) -> None:
        """Set row ``tokens[i]`` to ``best[i]``. Of duplicate tokens, the last wins."""
        last = {token: place for place, token in enumerate(tokens)}
        where = torch.tensor(list(last))
        self.rows[where, : best.shape[1]] = best[list(last.values())].to(torch.int32)
        self.known.update(last)

    def read(self, token: int) -> list[int]:
        """Return the successors of ``token``, most likely first; empty if the row was never written."""
        return self.rows[token].tolist() if token in self.known else []


class Recycler(NullDrafter):
    """Drafter that reads ``matrix`` and updates it from every target pass. ``updated``: number of rows in the last update."""

    def __init__(self, matrix: SuccessorMatrix) -> None:
        self.matrix = matrix
        self.updated = 0

    def observe(self, finished: Round) -> None:
        best = top_successors(finished.target.logits).cpu()
        self.matrix.write(finished.draft.tree.host_tokens, best)
        self.updated = len(finished.draft.tree)


class Static:
    """Tree builder that fills ``shape``: the r-th child of a node gets the r-th best successor.

    A branch ends at a token without known successors.
    """

    def __init__(self, shape: TreeShape) -> None:
        self.shape = shape

    def build(self, drafter: Recycler, context: Context) -> Draft:
        tokens, parents, place = [context.ids[-1]], [-1], {0: 0}
        rows: list[SuccessorRow] = []
        for level in self.shape.levels[: max(0, context.max_depth - 1)]:
            for node in (node for node in level if node in place and self.shape.children[node]):
                at = place[node]
                ranked = drafter.matrix.read(tokens[at])
                used = list(zip(self.shape.children[node], ranked, strict=False))
                for child, token in used:
                    place[child] = len(tokens)
                    tokens.append(token)
                    parents.append(at)
                if used:
                    rows.append(SuccessorRow(at, tokens[at], ranked, len(used)))
        tree = DraftTree.of(tokens, parents, context.device)
        notes = context.notes(lambda: [SuccessorsNote(rows[:SHOWN], drafter.updated).to_note()])
        return Draft(tree, confidence=(None,) * len(tree), calls=1, notes=notes)
