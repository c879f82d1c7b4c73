"""Group Tree Optimization's loss: a drafter is rewarded for the tree it would draft, not for single tokens.

Hu et al. 2026 (arXiv 2509.22134). The reward of a tree is its soft longest expected branch under the target. It is
compared with that of the tree which the drafter before this training would have grown in the same place, and with those of
neighbouring places; a drafter that did better than with its neighbours makes the branch that the target followed likelier,
within a clipped ratio. Only a low-rank change to the drafter's matrices is trained.
Axis names: ``group``, ``member`` (of a group: adjacent prefixes), ``start``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafters.networks.feature_net import FeatureNet
from specviz.drafters.networks.lora import TALL, WIDE
from specviz.engine.interfaces import Target
from specviz.training.common.features import DialogueFeatures
from specviz.training.feature import eagle3
from specviz.training.feature.tree_reward import Size, Tree, Truth, grown, worth

DELTA = 1e-6
"""Keeps the advantages of a group that did equally well at nothing."""
CLIP = 0.2
WEIGHT = 0.5
"""Of the tree loss beside the cross-entropy."""


@dataclass(frozen=True)
class Groups:
    """How many ``groups`` of ``members`` adjacent prefixes are taken of a dialogue, and how large their trees are."""

    groups: int = 4
    members: int = 8
    size: Size = field(default_factory=Size)


@dataclass(frozen=True)
class Arena:
    """What a loss is computed with: the drafter that learns, the same before it did, the target, and [vocab] places."""

    net: FeatureNet
    before: FeatureNet
    target: Target
    place: Tensor


class LowRank:
    """A change of given rank to every matrix of a network. ``factors`` are what is learned; :meth:`put` applies them.

    The tall factors start at zero, so that at first nothing is changed; the wide ones as orthonormal rows.
    """

    def __init__(self, net: nn.Module, rank: int, seed: int) -> None:
        self._matrices = {name: value for name, value in net.named_parameters() if value.ndim == 2}
        self._base = {name: value.detach().clone() for name, value in self._matrices.items()}
        self._rank, self._seed = rank, seed
        self.factors = self._fresh()
        for name, value in net.named_parameters():
            value.requires_grad_(name in self._matrices)

    def _fresh(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self._seed)
        factors: dict[str, Tensor] = {}
        for name, value in self._base.items():
            rows, columns = value.shape
            rank = min(self._rank, rows, columns)
            random = torch.randn(columns, rank, generator=generator, dtype=torch.float64)
            factors[name + TALL] = value.new_zeros(rows, rank)
            factors[name + WIDE] = torch.linalg.qr(random).Q.T.contiguous().to(value)
        return factors

    @property
    def leaves(self) -> list[Tensor]:
        """The network's matrices, whose gradients :meth:`gradients` wants."""
        return list(self._matrices.values())

    @torch.no_grad()
    def put(self, factors: dict[str, Tensor] | None = None) -> None:
        """Make the network what ``factors`` (None: the own ones) say."""
        change = self.factors if factors is None else factors
        for name, value in self._matrices.items():
            value.copy_(torch.addmm(self._base[name], change[name + TALL], change[name + WIDE]))

    def gradients(self, matrix_gradients: Sequence[Tensor]) -> dict[str, Tensor]:
        """Gradients of the factors from those of the matrices."""
        factor_gradients: dict[str, Tensor] = {}
        for name, gradient in zip(self._matrices, matrix_gradients, strict=True):
            factor_gradients[name + TALL] = gradient @ self.factors[name + WIDE].T
            factor_gradients[name + WIDE] = self.factors[name + TALL].T @ gradient
        return factor_gradients


def advantages(gain: Tensor) -> Tensor:
    """[group, member] of reward over the reference's reward: each group's, centred and over its own spread."""
    return (gain - gain.mean(1, keepdim=True)) / (gain.std(1, correction=0, keepdim=True) + DELTA)


def surrogate(ratio: Tensor, advantage: Tensor) -> Tensor:
    """What is minimised: ``-min(ratio * advantage, clip(ratio) * advantage)``, elementwise."""
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)


def chosen_starts(dialogue: DialogueFeatures, how: Groups, generator: np.random.Generator) -> Tensor:
    """int64 [group, member]: disjoint runs of adjacent starts inside the answer, at most ``how.groups``, ascending."""
    first, last = max(0, dialogue.first - 2), len(dialogue.tokens) - 3
    room = last - first + 1
    run_count = room // how.members
    if not run_count:
        return torch.zeros(0, how.members, dtype=torch.long)
    offset = first + int(generator.integers(room - run_count * how.members + 1))
    runs = np.sort(generator.permutation(run_count)[: how.groups])
    return torch.from_numpy(offset + runs[:, None] * how.members + np.arange(how.members))


def branch_log(
    net: FeatureNet, place: Tensor, dialogue: DialogueFeatures, starts: Tensor, branches: Sequence[tuple[int, ...]]
) -> Tensor:
    """[start]: log-probability under ``net`` of the tokens of each start's branch (at least one), drafted from there."""
    truth = Truth(net, dialogue.tokens, dialogue.features[:, eagle3.TAPS].flatten(1), starts)
    deepest = max(map(len, branches))
    tokens = torch.tensor([(*branch, *branch[:1] * (deepest - len(branch))) for branch in branches], device=starts.device)
    length = torch.tensor([len(branch) for branch in branches], device=starts.device)
    output, total, own = truth.first(), torch.zeros(len(starts), device=starts.device), []
    for step in range(deepest):
        log_probability = -F.cross_entropy(net.logits(output), place[tokens[:, step]], reduction="none")
        total = total + torch.where(length > step, log_probability, 0.0)
        if step + 1 < deepest:
            output = truth.deeper(tokens[:, step : step + 1], output, own, step + 1)
    return total


@dataclass(frozen=True)
class Judged:
    """What the trees at ``starts`` were worth, each [start]: reward over the reference's (on the CPU), advantage, and the
    branch that is made likelier or less likely (empty where nothing is)."""

    starts: Tensor
    gain: Tensor
    advantage: Tensor
    branches: tuple[tuple[int, ...], ...]


@torch.no_grad()
def judged(arena: Arena, dialogue: DialogueFeatures, starts: Tensor, size: Size) -> Judged:
    """Grow both drafters' trees at ``starts`` [group, member] and compare. Only groups in which some trees differ count.

    The branch is as far as the tree holds what the target went on to write; where that is not even one token, the branch
    that the target may be expected to follow longest.
    """
    device = dialogue.tokens.device
    flat, text = starts.flatten().to(device), dialogue.tokens.tolist()
    features = dialogue.features[:, eagle3.TAPS].flatten(1)
    trees, trees_before = (grown(net, dialogue.tokens, features, flat, size) for net in (arena.net, arena.before))
    differ = torch.tensor([tree.paths != before.paths for tree, before in zip(trees, trees_before, strict=True)])
    counts = differ.view(starts.shape).any(1, keepdim=True).expand(starts.shape).flatten().tolist()
    branches = []
    for start, tree in zip(flat.tolist(), trees, strict=True):
        after = tuple(text[start + 2 : start + 2 + size.depth])
        branches.append(after[: tree.along(after)])
    # Where both trees are one the gain is nothing whatever the target says: it is asked only if a branch is wanted.
    scored = [number for number, counted in enumerate(counts) if counted and (differ[number] or not branches[number])]
    gain = torch.zeros(len(flat), dtype=torch.float64)
    if scored:
        roots = [int(flat[number]) + 1 for number in scored]
        forests: list[list[Tree]] = [[forest[number] for number in scored] for forest in (trees, trees_before)]
        for number, now, before in zip(scored, *worth(arena.target, text, roots, forests, starts.shape[1]), strict=True):
            gain[number] = now.reward - before.reward if differ[number] else 0.0
            branches[number] = branches[number] or now.longest
    advantage = advantages(gain.view(starts.shape)).flatten().to(device)
    return Judged(flat, gain, advantage, tuple(branch if counts[at] else () for at, branch in enumerate(branches)))


def tree_loss(arena: Arena, dialogue: DialogueFeatures, judgement: Judged, scale: float) -> Tensor | None:
    """The clipped surrogate over the starts, times ``scale``; None where it could move nothing."""
    pulls = [number for number, branch in enumerate(judgement.branches) if branch and float(judgement.advantage[number])]
    if not pulls:
        return None
    starts, branches = judgement.starts[pulls], [judgement.branches[number] for number in pulls]
    with torch.no_grad():
        old = branch_log(arena.before, arena.place, dialogue, starts, branches)
    new = branch_log(arena.net, arena.place, dialogue, starts, branches)
    length = torch.tensor([len(branch) for branch in branches], device=new.device)
    ratio = ((new - old) / length).exp()
    return surrogate(ratio, judgement.advantage[pulls].to(ratio.dtype)).sum() * scale
