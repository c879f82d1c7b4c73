"""Teacher-forced acceptance: how well the head predicts the target along a greedy answer, by depth, from every token.

A greedy answer is the target's argmax at every position. So teacher-forcing a head that reads its own states along it is exactly
chain drafting from every token of the answer. Rates are conditional on all shallower drafts being right, as engines report them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from specviz.drafting.networks.block_fill import BlockFill, FillRuntime
from specviz.drafting.networks.feature_head import FeatureHead, FeatureRuntime
from specviz.drafting.networks.parallel_net import ParallelNet
from specviz.drafting.runtimes.visual_context import EMBEDDINGS, pictured
from specviz.engine.stop import heed
from specviz.inspection.passages import Passage

LEAST = math.log(1e-6)
"""Floor of log q; also the value for tokens outside the draft vocabulary."""


@dataclass(frozen=True)
class Reading:
    """One interpretation of a head's weights and inputs, where published heads or engines differ in convention.

    ``shift`` is added to the position id of every drafted token, by default its parent's plus one. ``lag`` is the
    number of tokens by which the target's states are delayed.
    """

    head: FeatureHead | BlockFill
    shift: int = 0
    lag: int = 0


@dataclass
class TeacherForcedStats:
    """Teacher-forced statistics of one :class:`Reading`.

    ``lengths``: by passage, [place], the number of consecutive correct drafts.
    ``evidence``: by passage, [place], the mean over depths of log q of the target's token, whether or not earlier drafts were
    right. It separates two readings with far fewer positions than acceptance does.
    ``overlap``: by position, the sum over tokens of min(p, q) at depth 1: the acceptance rate at temperature 1.
    ``guesses``: confidence and verdict of each draft whose shallower drafts were right.
    ``known``: the number of labels at depth 1 that are in the draft vocabulary.
    """

    depth: int
    lengths: list[Tensor] = field(default_factory=list)
    evidence: list[Tensor] = field(default_factory=list)
    overlap: list[float] = field(default_factory=list)
    guesses: list[tuple[float, bool]] = field(default_factory=list)
    known: int = 0

    @property
    def places(self) -> int:
        """Number of positions that chains started from."""
        return sum(map(len, self.lengths))

    @property
    def reached(self) -> list[int]:
        """Numbers of chains whose first 0, 1, … ``depth`` drafts were right."""
        return [sum(int((one >= depth).sum()) for one in self.lengths) for depth in range(self.depth + 1)]

    @property
    def rates(self) -> list[float | None]:
        """Conditional acceptance by depth, None for a depth that no chain reached."""
        return [right / reached if reached else None for reached, right in pairwise(self.reached)]

    @property
    def accepted(self) -> float:
        """Mean number of drafted tokens accepted per chain of ``depth`` tokens."""
        return sum(self.reached[1:]) / max(1, self.places)

    @property
    def overlap_rate(self) -> float:
        """Expected acceptance rate of the first drafted token at temperature 1."""
        return sum(self.overlap) / max(1, len(self.overlap))


@torch.inference_mode()
def teacher_force(reading: Reading, passages: Sequence[Passage], depth: int) -> TeacherForcedStats:
    """Draft ``depth`` tokens with ``reading`` from every position followed by that many tokens. A block
    drafter drafts at most its block size less one."""
    if isinstance(reading.head, BlockFill):
        network, depth = reading.head.runtime(), min(depth, reading.head.config.block - 1)
        return _stats(depth, network.draft_ids, passages, lambda passage, starts: _block(network, passage, starts, depth))
    stepper = FeatureRuntime(reading.head)
    return _stats(depth, stepper.draft_ids, passages, lambda passage, starts: _chains(reading, stepper, passage, starts, depth))


@torch.inference_mode()
def teacher_force_parallel(net: ParallelNet, passages: Sequence[Passage], depth: int) -> TeacherForcedStats:
    """Return the statistics of a network that predicts all depths from one state of the target: Medusa's heads."""
    depth = min(depth, net.config.heads)

    def drafted(passage: Passage, starts: Tensor) -> Iterable[Tensor]:
        return net.logits(passage.states[net.config.tap][starts].to(net.outputs.dtype))[:depth]

    return _stats(depth, net.draft_ids, passages, drafted)


def _chains(reading: Reading, stepper: FeatureRuntime, passage: Passage, starts: Tensor, depth: int) -> Iterator[Tensor]:
    """Yield by depth the logits [place, draft vocab] of chains along the passage, one from each of ``starts``."""
    ids = passage.ids
    rows = len(ids) - 1
    states = _states(passage, stepper)[:-1]
    if reading.lag:
        states = states.roll(reading.lag, 0)
    columns = rows + (depth - 1) * len(starts)
    cache, place = stepper.open(columns), torch.arange(rows, device=ids.device)
    cache.reserve(columns)
    stepper.reach(rows + depth + abs(reading.shift) + 1)
    # A position has as many axes as the head reads.
    axial = passage.layout.axial if passage.layout and stepper.axes > 1 else lambda places: places
    beside = {}
    if passage.layout is not None and stepper.pictured:  # embeddings of all tokens but the first; visual ones may bypass fc
        beside["embedded"] = pictured(passage.layout, passage.states[EMBEDDINGS], ids[1:], 1, stepper.embedding)
        if stepper.direct:
            visual = torch.tensor(passage.layout.visual, device=ids.device)
            beside["direct"] = torch.isin(torch.arange(1, len(ids), device=ids.device), visual)
    causal = place[None] <= place[:, None]
    outputs = stepper(ids[1:], stepper.fuse(states), axial(place), cache, 0, causal, **beside)[starts]
    mask, own = place[None] <= starts[:, None], torch.eye(len(starts), dtype=torch.bool, device=ids.device)
    for level in range(depth):
        if level:
            mask, column = torch.cat((mask, own), dim=1), rows + (level - 1) * len(starts)
            positions = axial((starts + level + reading.shift).clamp_min(0))
            outputs = stepper(ids[starts + level + 1], outputs, positions, cache, column, mask)
        yield stepper.logits(outputs)


def _block(network: FillRuntime, passage: Passage, starts: Tensor, depth: int) -> Iterable[Tensor]:
    """Return by depth the logits [place, draft vocab] of one block from each of ``starts``, given the passage's tokens."""
    outputs = network.blocks(network.fuse(_states(passage, network)), passage.ids, starts + 1)
    return network.conditional_logits(outputs[:, :depth], passage.ids, starts + 1).unbind(1)


def _states(passage: Passage, network: FeatureRuntime | FillRuntime) -> Tensor:
    """The hidden states [token, tap * hidden] that the network reads."""
    return torch.cat([passage.states[tap] for tap in network.config.taps], dim=-1).to(network.embedding)


def _stats(
    depth: int, draft_ids: Tensor | None, passages: Sequence[Passage], drafted: Callable[[Passage, Tensor], Iterable[Tensor]]
) -> TeacherForcedStats:
    """Return the statistics of drafts, whose logits [place, draft vocab] by depth ``drafted`` returns for a passage's starts."""
    stats = TeacherForcedStats(depth)
    for passage in passages:
        heed()
        ids = passage.ids
        # Row i holds the state of token i and the embedding of token i + 1, and predicts token i + 2.
        starts = torch.arange(max(0, passage.first - 1), len(ids) - 1 - depth, device=ids.device)
        if not len(starts):
            continue
        lengths = torch.zeros_like(starts)
        evidence = torch.zeros(len(starts), device=ids.device)
        for level, logits in enumerate(drafted(passage, starts)):
            log_q = logits.float().log_softmax(-1)
            # The drafter's row of each token [vocab], -1 outside the draft vocabulary.
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
