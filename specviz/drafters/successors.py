"""Token Recycling's matrix: for every token the eight likeliest successors seen in any logits, rejected nodes' included.

Luo et al., "Turning Trash into Treasure" (arXiv 2408.08696).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.drafters.silent import Silent
from specviz.engine.interfaces import Round
from specviz.trace.schema import Note

WIDTH = 8
_CHUNK = 128


def top_successors(logits: Tensor, width: int = WIDTH) -> Tensor:
    """Ids of the ``width`` largest logits, int64 [node, width].

    In two passes, since the largest tokens lie in the chunks with the largest maxima: several times faster on a CPU than
    one top-k over the whole vocabulary. Equal logits may be ranked either way.
    """
    nodes, vocab = logits.shape
    if vocab < 4 * _CHUNK * width:
        return logits.topk(min(width, vocab), dim=-1).indices
    whole = vocab // _CHUNK * _CHUNK
    chunks = logits[:, :whole].view(nodes, -1, _CHUNK)
    best = chunks.amax(-1).topk(width, dim=-1).indices
    inside = chunks.gather(1, best[:, :, None].expand(-1, -1, _CHUNK)).reshape(nodes, -1)
    ids = (best[:, :, None] * _CHUNK + torch.arange(_CHUNK, device=logits.device)).reshape(nodes, -1)
    if whole < vocab:
        inside = torch.cat([inside, logits[:, whole:]], -1)
        ids = torch.cat([ids, torch.arange(whole, vocab, device=logits.device).expand(nodes, -1)], -1)
    return ids.gather(1, inside.topk(width, dim=-1).indices)


class SuccessorMatrix:
    """``rows`` int32 [vocab, 8] on the host and which rows were ever written. Kept across runs when the caller keeps it."""

    def __init__(self, vocab_size: int) -> None:
        self.rows = torch.zeros(vocab_size, WIDTH, dtype=torch.int32)
        self.known = torch.zeros(vocab_size, dtype=torch.bool)

    def write(self, tokens: Tensor, best: Tensor) -> None:
        """Row ``tokens[i]`` becomes ``best[i]``; of duplicates the last one wins."""
        for token, row in zip(tokens.tolist(), best.to(torch.int32), strict=True):
            self.rows[token, : row.shape[0]] = row
            self.known[token] = True

    def read(self, token: int) -> list[int]:
        """Successors of ``token``, likeliest first; none where the row was never written."""
        return self.rows[token].tolist() if bool(self.known[token]) else []


class Recycler(Silent):
    """The drafter: reads the matrix while drafting, rewrites it from every row of every target pass."""

    def __init__(self, matrix: SuccessorMatrix) -> None:
        self.matrix = matrix
        self._updated = 0

    def successors(self, tokens: Sequence[int]) -> list[list[int]]:
        return [self.matrix.read(token) for token in tokens]

    def note(self, rows: Sequence[dict[str, object]]) -> Note:
        return Note("successors", {"rows": list(rows), "updated": self._updated})

    def observe(self, finished: Round) -> None:
        best = top_successors(finished.target.logits).cpu()
        self.matrix.write(finished.draft.tree.tokens.cpu(), best)
        self._updated = len(finished.draft.tree)
