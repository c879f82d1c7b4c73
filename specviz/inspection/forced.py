"""Teacher-forced acceptance of a head along greedy answers of the target, by depth.

A greedy answer consists of the target's argmax tokens, so teacher forcing is equivalent to chain drafting from each position of
the answer. Rates are conditional on the acceptance of all shallower drafts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from specviz.drafting.networks.block_fill import BlockFill, FillRuntime
from specviz.drafting.networks.eagle_head import EagleRuntime, PublishedEagleHead
from specviz.drafting.networks.parallel_net import ParallelNet
from specviz.drafting.runtimes.visual_context import EMBEDDINGS, pictured
from specviz.engine.stop import heed
from specviz.inspection.passages import Passage

LEAST = math.log(1e-6)
"""Minimum of log q, also used for tokens outside the draft vocabulary."""


@dataclass(frozen=True)
class Reading:
    """A head with conventions for its weights and inputs.

    ``shift``: offset of the drafted tokens' position ids; ``lag``: delay of the target's hidden states, in tokens.
    """

    head: PublishedEagleHead | BlockFill
    shift: int = 0
    lag: int = 0


@dataclass
class TeacherForcedStats:
    """Teacher-forced statistics of a :class:`Reading`.

    ``lengths``: number of consecutive correct drafts, by passage, [position].
    ``evidence``: mean of log q of the target's tokens over depths, by passage, [position]. Two readings differ significantly in
    evidence at far fewer positions than in acceptance.
    ``overlap``: sum of min(p, q) over the vocabulary at depth 1, by position.
    ``guesses``: confidence and correctness of each draft after correct shallower drafts.
    ``known``: number of target tokens at depth 1 in the draft vocabulary.
    """

    depth: int
    lengths: list[Tensor] = field(default_factory=list)
    evidence: list[Tensor] = field(default_factory=list)
    overlap: list[float] = field(default_factory=list)
    guesses: list[tuple[float, bool]] = field(default_factory=list)
    known: int = 0

    @property
    def places(self) -> int:
        """Number of drafted chains, one per position."""
        return sum(map(len, self.lengths))

    @property
    def reached(self) -> list[int]:
        """Number of chains whose first i drafts are correct, for i from 0 to ``depth``."""
        return [sum(int((one >= depth).sum()) for one in self.lengths) for depth in range(self.depth + 1)]

    @property
    def rates(self) -> list[float | None]:
        """Conditional acceptance rate by depth, None if no chain reached the depth."""
        return [right / reached if reached else None for reached, right in pairwise(self.reached)]

    @property
    def accepted(self) -> float:
        """Mean number of accepted tokens per chain of ``depth`` tokens."""
        return sum(self.reached[1:]) / max(1, self.places)

    @property
    def overlap_rate(self) -> float:
        """Expected acceptance rate of the first drafted token at temperature 1."""
        return sum(self.overlap) / max(1, len(self.overlap))


@torch.inference_mode()
def teacher_force(reading: Reading, passages: Sequence[Passage], depth: int) -> TeacherForcedStats:
    """Return the statistics of chains of ``depth`` tokens, drafted from each position with enough tokens after it.

    For a block drafter, ``depth`` is at most the block size minus one.
    """
    if isinstance(reading.head, BlockFill):
        network, depth = reading.head.runtime(), min(depth, reading.head.config.block - 1)
        return _stats(depth, network.draft_ids, passages, lambda passage, starts: _block(network, passage, starts, depth))
    runtime = EagleRuntime(reading.head)
    return _stats(depth, runtime.draft_ids, passages, lambda passage, starts: _chains(reading, runtime, passage, starts, depth))


@torch.inference_mode()
def teacher_force_parallel(net: ParallelNet, passages: Sequence[Passage], depth: int) -> TeacherForcedStats:
    """Return the statistics of parallel heads (Medusa)."""
    depth = min(depth, net.config.heads)

    def drafted(passage: Passage, starts: Tensor) -> Iterable[Tensor]:
        return net.logits(passage.states[net.config.tap][starts].to(net.outputs.dtype))[:depth]

    return _stats(depth, net.draft_ids, passages, drafted)


def _chains(reading: Reading, runtime: EagleRuntime, passage: Passage, starts: Tensor, depth: int) -> Iterator[Tensor]:
    """Yield the logits [start, draft vocab] of chains from ``starts``, depth by depth."""
    ids = passage.ids
    rows = len(ids) - 1
    states = _states(passage, runtime)[:-1]
    if reading.lag:
        states = states.roll(reading.lag, 0)
    columns = rows + (depth - 1) * len(starts)
    cache, place = runtime.open(columns), torch.arange(rows, device=ids.device)
    cache.reserve(columns)
    runtime.reach(rows + depth + abs(reading.shift) + 1)
    # Heads with multi-axis rotary embeddings take time, height and width positions.
    how, layout, beside = runtime.config.how, passage.layout, dict[str, Tensor]()
    axial = layout.axial if layout and how.sections else lambda places: places
    if layout and how.pictured:  # image embeddings may bypass the input projection
        beside["embedded"] = pictured(layout, passage.states[EMBEDDINGS], ids[1:], 1, runtime.embedding)
        if how.direct:
            visual = torch.tensor(layout.visual, device=ids.device)
            beside["direct"] = torch.isin(place + 1, visual)
    causal = place[None] <= place[:, None]
    outputs = runtime(ids[1:], runtime.fuse(states), axial(place), cache, 0, causal, **beside)[starts]
    mask, own = place[None] <= starts[:, None], torch.eye(len(starts), dtype=torch.bool, device=ids.device)
    for level in range(depth):
        if level:
            mask, column = torch.cat((mask, own), dim=1), rows + (level - 1) * len(starts)
            positions = axial((starts + level + reading.shift).clamp_min(0))
            outputs = runtime(ids[starts + level + 1], outputs, positions, cache, column, mask)
        yield runtime.logits(outputs)


def _block(network: FillRuntime, passage: Passage, starts: Tensor, depth: int) -> Iterable[Tensor]:
    """Return the logits [start, draft vocab] of blocks from ``starts``, by depth, conditioned on the passage's tokens."""
    outputs = network.blocks(network.fuse(_states(passage, network)), passage.ids, starts + 1)
    return network.conditional_logits(outputs[:, :depth], passage.ids, starts + 1).unbind(1)


def _states(passage: Passage, network: EagleRuntime | FillRuntime) -> Tensor:
    """Return the network's input states [token, tap * hidden]."""
    return torch.cat([passage.states[tap] for tap in network.config.taps], dim=-1).to(network.embedding)


def _stats(
    depth: int, draft_ids: Tensor | None, passages: Sequence[Passage], drafted: Callable[[Passage, Tensor], Iterable[Tensor]]
) -> TeacherForcedStats:
    """Return the statistics of drafts. ``drafted``: function of a passage and start positions that returns logits by depth."""
    stats = TeacherForcedStats(depth)
    for passage in passages:
        heed()
        ids = passage.ids
        # Row i combines the state of token i with the embedding of token i + 1 to predict token i + 2.
        starts = torch.arange(max(0, passage.first - 1), len(ids) - 1 - depth, device=ids.device)
        if not len(starts):
            continue
        lengths = torch.zeros_like(starts)
        evidence = torch.zeros(len(starts), device=ids.device)
        for level, logits in enumerate(drafted(passage, starts)):
            log_q = logits.float().log_softmax(-1)
            # Index of each token [vocab] in the draft vocabulary, or -1.
            known = torch.arange(log_q.shape[-1], device=ids.device) if draft_ids is None else draft_ids
            row_of = torch.full_like(passage.logits[0], -1, dtype=torch.long)
            row_of[known] = torch.arange(len(known), device=ids.device)
            labels = row_of[ids[starts + level + 2]]
            evidence += torch.where(labels < 0, LEAST, log_q.gather(1, labels.clamp_min(0)[:, None])[:, 0].clamp_min(LEAST))
            sure, best = log_q.exp().max(-1)
            hit, alive = best == labels, lengths == level
            stats.guesses += zip(sure[alive].tolist(), hit[alive].tolist(), strict=True)
            if level == 0:
                stats.known += int((labels >= 0).sum())
                p = passage.logits[starts + 2 - passage.first].float().softmax(-1)[:, known]
                stats.overlap += torch.minimum(p, log_q.exp()).sum(-1).tolist()
            lengths += alive & hit
        stats.lengths.append(lengths.cpu())
        stats.evidence.append(evidence.cpu() / depth)
    return stats
