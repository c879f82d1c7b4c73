"""``train gto``, Group Tree Optimization: a drafter is rewarded for the tree it would draft, not for single tokens.

Hu et al. 2026 (arXiv 2509.22134). A tree's reward is a soft maximum over its branches' expected lengths under the target, minus
that of the reference drafter's tree at the same place. The reference is the drafter before this training. The advantage is the
reward centred and scaled over a group of neighbouring places. A positive advantage makes the branch that the target followed
more likely, within a clipped ratio. Only a low-rank change to the matrices of EAGLE-3's drafter is trained.

Trees are those of ``trees.dynamic`` (expand, then rerank), grown together for many places of a dialogue. Every start attends to
the true keys up to its position and to its own nodes' ancestors, as in ``feature``. The target then runs once over all of a
group's trees with their common nodes merged and without their leaves: a token's probability is in its parent's row.
Axis names: ``group``, ``member`` (of a group: adjacent prefixes), ``start`` (a position that drafts), ``beam``, ``node``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specviz.drafting.networks.feature_net import FeatureNet
from specviz.engine.interfaces import Target
from specviz.engine.tree import DraftTree
from specviz.methods.gto import branch_lengths, tree_reward
from specviz.models.heads.heads import independent_copy, load_heads
from specviz.models.hub.packed_model import CHANGES, named
from specviz.targets.text import TextTarget
from specviz.training import data, driver
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.families.feature import EAGLE3_TAPS, Own, Truth, acceptance_figures, eagle3_loss, gather, read_all, run
from specviz.training.features import DialogueFeatures, FeatureStore
from specviz.training.optimizer import LowRank
from specviz.training.registry import WEIGHTS


class Size(NamedTuple):
    """The size of every tree: its depth, its children per node and beam width, and its number of nodes without the root."""

    depth: int = 5
    width: int = 4
    nodes: int = 24


@dataclass(frozen=True)
class Tree:
    """``tokens`` and ``parents`` by node, parents before children; the root's token is unused."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    @cached_property
    def paths(self) -> frozenset[tuple[int, ...]]:
        """The token path to each node: equal for two trees that differ only in the order of their nodes."""
        return frozenset(self.down_to(node) for node in range(len(self.tokens)))

    def along(self, text: Sequence[int]) -> int:
        """The number of leading tokens of ``text``, the continuation of the root, that the tree contains as a branch."""
        return next(length for length in range(len(text), -1, -1) if tuple(text[:length]) in self.paths)

    def down_to(self, node: int) -> tuple[int, ...]:
        """The tokens from below the root to ``node``."""
        return (*self.down_to(self.parents[node]), self.tokens[node]) if node else ()


@torch.no_grad()
def grow_trees(net: FeatureNet, tokens: Tensor, features: Tensor, starts: Tensor, size: Size) -> list[Tree]:
    """Grow the tree of each of ``starts`` (int64 [start], ascending); start i drafts after root i + 1.

    ``tokens`` [token] and ``features`` [token, tap * hidden] are the whole dialogue's.
    """
    truth, starts = Truth(net, F.embedding(tokens, net.embedding), features), starts.cpu()
    count, device = len(starts), tokens.device
    output, parents = truth.first(starts), torch.zeros(count, 1, dtype=torch.long, device=device)
    value, considered = torch.zeros(count, 1, dtype=torch.float64, device=device), 1
    # All candidates in order: candidate 0 is the root; a level has tokens, parents and values [start, beam * width].
    levels, own = list[tuple[Tensor, Tensor, Tensor]](), Own()
    for depth in range(1, size.depth + 1):
        logits = net.logits(output).float()
        best = logits.topk(min(size.width, logits.shape[-1]))
        shares = (best.values - logits.logsumexp(-1, keepdim=True)).clamp_max(0.0).double()
        ids = (best.indices if net.draft_ids is None else net.draft_ids[best.indices]).view(count, -1)
        width = ids.shape[1] // value.shape[1]
        below = (value[:, :, None] + shares.view(*value.shape, width)).flatten(1)
        levels.append((ids, parents.repeat_interleave(width, 1), below))
        # A stable sort, so that of two equal candidates the earlier one wins, as in drafting.
        beam = below.sort(dim=1, descending=True, stable=True).indices[:, : size.width]
        row = (beam // width + torch.arange(count, device=device)[:, None] * value.shape[1]).flatten()
        value, parents, considered = below.gather(1, beam), considered + beam, considered + below.shape[1]
        own = [(keys[row], values[row]) for keys, values in own]
        if depth < size.depth:
            words = F.embedding(ids.gather(1, beam).flatten(), net.embedding)
            output = truth.deeper(starts.repeat_interleave(beam.shape[1]), words, output[row], own, depth)
    # The candidates of highest value. A parent's value is never lower than its child's, and a parent comes first.
    tokens, parents, values = (torch.cat(parts, 1) for parts in zip(*levels, strict=True))
    chosen = values.sort(dim=1, descending=True, stable=True).indices[:, : size.nodes].sort(dim=1).values
    trees = list[Tree]()
    rows = (chosen, tokens.gather(1, chosen), parents.gather(1, chosen))
    for numbers, kept, above in zip(*(part.tolist() for part in rows), strict=True):
        place = {0: 0} | {number + 1: node for node, number in enumerate(numbers, start=1)}
        trees.append(Tree((-1, *kept), (-1, *(place[parent] for parent in above))))
    return trees


class TreeScore(NamedTuple):
    """A tree's ``reward``, and the tokens of its branch of ``longest`` expected length."""

    reward: float
    longest: tuple[int, ...]


def score_trees(
    target: Target, text: Sequence[int], roots: Sequence[int], forests: Sequence[Sequence[Tree]], group: int = 8
) -> list[list[TreeScore]]:
    """Score each forest's tree after ``text[root]`` with the target: ``[forest][root]``. ``roots`` ascend.

    One pass scores the trees after ``group`` adjacent tokens.
    """
    session, worths, place = target.open(len(text)), [list[TreeScore]() for _ in forests], 0
    try:
        while place < len(roots):
            first = roots[place]
            numbers = [number for number in range(place, len(roots)) if roots[number] < first + group]
            if session.length < first:
                session.prefill(text[session.length : first])
            # One merged tree: the text from ``first`` on and all distinct inner nodes of the trees after its tokens.
            tokens = list(text[first : roots[numbers[-1]] + 1])
            parents, stretch = list(range(-1, len(tokens) - 1)), len(tokens)
            shared = {(node - 1, token): node for node, token in enumerate(tokens) if node}
            asked, pairs = [(forest[number], roots[number] - first) for forest in forests for number in numbers], []
            for tree, root in asked:  # each drafted node's parent in the merged tree, and its token
                inner, where = set(tree.parents), {0: root}
                for node, (parent, token) in enumerate(zip(tree.parents[1:], tree.tokens[1:], strict=True), start=1):
                    pairs.append(pair := (where[parent], token))
                    if node in inner:
                        if pair not in shared:
                            shared[pair] = len(tokens)
                            tokens.append(token)
                            parents.append(where[parent])
                        where[node] = shared[pair]
            logits = session.score(DraftTree.of(tokens, parents, target.device)).logits.float()
            session.keep(range(stretch))
            rows, columns = torch.tensor(pairs, device=logits.device).T
            found = iter((logits[rows, columns] - logits.logsumexp(-1)[rows]).exp().tolist())
            for number, (tree, _) in enumerate(asked):
                lengths = branch_lengths(tree.parents, (1.0, *islice(found, len(tree.tokens) - 1)))
                longest = tree.down_to(max(lengths, key=lengths.__getitem__))
                worths[number // len(numbers)].append(TreeScore(tree_reward(lengths.values()), longest))
            place = numbers[-1] + 1
    finally:
        session.close()
    return worths


START = "eagle3"
MEASURED = 40
RANK = 16
"""The rank of the change."""
GROUPS, MEMBERS, SIZE = 4, 8, Size()
"""Groups per dialogue in an update, adjacent prefixes per group, and the size of their trees."""
DELTA = 1e-6
"""Keeps advantages at zero if all gains of a group are equal."""
CLIP = 0.2
WEIGHT = 0.5
"""The weight of the tree loss beside the cross-entropy."""


class LossInputs(NamedTuple):
    """Inputs of a loss: the drafter in training, the reference ``before`` it, the target, and [vocab] draft indices."""

    net: FeatureNet
    before: FeatureNet
    target: Target
    place: Tensor


def advantages(gain: Tensor) -> Tensor:
    """Normalise gains over the reference's reward, [group, member]: centre each group and divide by its spread."""
    return (gain - gain.mean(1, keepdim=True)) / (gain.std(1, correction=0, keepdim=True) + DELTA)


def surrogate(ratio: Tensor, advantage: Tensor) -> Tensor:
    """The loss ``-min(ratio * advantage, clip(ratio) * advantage)``, elementwise."""
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)


def sample_starts(dialogue: DialogueFeatures, groups: int, members: int, generator: np.random.Generator) -> Tensor:
    """int64 [group, member]: disjoint runs of adjacent starts inside the answer, at most ``groups``, ascending."""
    first = max(0, dialogue.first - 2)
    room = len(dialogue.tokens) - 2 - first
    run_count = room // members
    if not run_count:
        return torch.zeros(0, members, dtype=torch.long)
    offset = first + int(generator.integers(room - run_count * members + 1))
    runs = np.sort(generator.permutation(run_count)[:groups])
    return torch.from_numpy(offset + runs[:, None] * members + np.arange(members))


def branch_log(
    net: FeatureNet, place: Tensor, dialogue: DialogueFeatures, starts: Tensor, branches: Sequence[tuple[int, ...]]
) -> Tensor:
    """The log-probability [start] under ``net`` of each start's branch of at least one token."""
    words = F.embedding(dialogue.tokens, net.embedding)
    truth = Truth(net, words, dialogue.features[:, EAGLE3_TAPS].flatten(1))
    tokens = pad_sequence([torch.tensor(branch) for branch in branches]).to(starts.device)
    length = torch.tensor([len(branch) for branch in branches], device=starts.device)
    starts, own = starts.cpu(), Own()
    output, total = truth.first(starts), torch.zeros(len(starts), device=length.device)
    for step, drafted in enumerate(tokens, start=1):
        log_probability = -F.cross_entropy(net.logits(output), place[drafted], reduction="none")
        total = total + torch.where(length >= step, log_probability, 0.0)
        if step < len(tokens):
            output = truth.deeper(starts, F.embedding(drafted, net.embedding), output, own, step)
    return total


class TreeComparison(NamedTuple):
    """Results of the trees at ``starts``, each [start]: ``gain`` in reward over the reference (on the CPU), advantage, and the
    branch whose likelihood changes (empty for none)."""

    starts: Tensor
    gain: Tensor
    advantage: Tensor
    branches: tuple[tuple[int, ...], ...]


@torch.no_grad()
def compare_trees(arena: LossInputs, dialogue: DialogueFeatures, starts: Tensor, size: Size) -> TreeComparison:
    """Grow both drafters' trees at ``starts`` [group, member] and compare them. Only groups with differing trees count.

    The branch is the part of the target's continuation that the tree contains. If it contains none, the branch is the one of
    longest expected length under the target.
    """
    device = dialogue.tokens.device
    flat, text = starts.flatten().to(device), dialogue.tokens.tolist()
    features = dialogue.features[:, EAGLE3_TAPS].flatten(1)
    trees, trees_before = (grow_trees(net, dialogue.tokens, features, flat, size) for net in (arena.net, arena.before))
    differ = torch.tensor([tree.paths != before.paths for tree, before in zip(trees, trees_before, strict=True)])
    counts = differ.view(starts.shape).any(1, keepdim=True).expand(starts.shape).flatten().tolist()
    branches = []
    for start, tree in zip(flat.tolist(), trees, strict=True):
        after = tuple(text[start + 2 : start + 2 + size.depth])
        branches.append(after[: tree.along(after)])
    # Equal trees have no gain whatever the target returns: they are scored only if a branch is missing.
    scored = [number for number, counted in enumerate(counts) if counted and (differ[number] or not branches[number])]
    gain = torch.zeros(len(flat), dtype=torch.float64)
    if scored:
        roots = [int(flat[number]) + 1 for number in scored]
        forests: list[list[Tree]] = [[forest[number] for number in scored] for forest in (trees, trees_before)]
        for number, now, before in zip(scored, *score_trees(arena.target, text, roots, forests, starts.shape[1]), strict=True):
            gain[number] = now.reward - before.reward if differ[number] else 0.0
            branches[number] = branches[number] or now.longest
    advantage = advantages(gain.view(starts.shape)).flatten().to(device)
    return TreeComparison(flat, gain, advantage, tuple(branch if counts[at] else () for at, branch in enumerate(branches)))


def tree_loss(arena: LossInputs, dialogue: DialogueFeatures, judgement: TreeComparison, scale: float) -> Tensor | None:
    """The clipped surrogate summed over the starts, times ``scale``; None if its gradient would be zero."""
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


class GtoTraining(TrainState):
    """Training of a low-rank change to the drafter of ``arena`` with the tree's reward."""

    unit = "prefixes"

    def __init__(
        self, arena: LossInputs, store: FeatureStore, training: Sequence[int], settings: Schedule, held_out: Sequence[int] = ()
    ) -> None:
        super().__init__(settings, LowRank(arena.net, RANK))
        self.arena, self.store, self.training, self.held_out = arena, store, training, held_out
        self.settle()

    def step(self, share: float) -> Step:
        """Loss and gradients: the cross-entropy, and the reward of trees at a few prefixes of each dialogue."""
        number, arena = self.progress.updates, self.arena
        batch, judgements = self.settings.batch, list[TreeComparison]()
        numbers = data.cycle_shuffled(self.training, number * batch, batch, [0])
        answers = sum(len(self.store.dialogues.answer(dialogue_number)) for dialogue_number in numbers)
        prefixes = batch * GROUPS * MEMBERS

        def loss(part: Sequence[tuple[int, int]]) -> Tensor:
            ((place, dialogue_number),) = part
            dialogue = self.store.get([dialogue_number])[0]
            generator = torch.Generator().manual_seed(1_000_003 * number + place)
            total = eagle3_loss(arena.net, arena.place, dialogue, generator, 1.0 / answers)
            order = np.random.default_rng([0, number, place])
            starts = sample_starts(dialogue, GROUPS, MEMBERS, order)
            if not len(starts):
                return total
            judgement = compare_trees(arena, dialogue, starts, SIZE)
            judgements.append(judgement)
            pulled = tree_loss(arena, dialogue, judgement, WEIGHT / prefixes)
            return total if pulled is None else total + pulled

        step = self.learn(list(enumerate(numbers)), loss, 0)
        return step._replace(tokens=sum(len(judgement.gain) for judgement in judgements))

    @torch.inference_mode()
    def trees(self, number: int) -> list[Tree]:
        """The tree after every token of a dialogue, from the prompt's last to the answer's second to last."""
        dialogue = self.store.get([number])[0]
        starts = torch.arange(dialogue.first - 2, len(dialogue.tokens) - 2)
        features = dialogue.features[:, EAGLE3_TAPS].flatten(1)
        return grow_trees(self.arena.net, dialogue.tokens, features, starts, SIZE)

    def figures(self) -> dict[str, Any]:
        """Acceptance on held-out answers before and after the change."""
        with self.using({name: torch.zeros_like(value) for name, value in self.optimizer.parameters.items()}):
            start = self.accepted(self.held_out)
        return {"start": start, "gto": self.accepted(self.held_out)}

    def accepted(self, numbers: Sequence[int]) -> dict[str, float]:
        """Acceptance along these greedy answers: tokens per step with the trees, bonus included, and chain figures by depth."""
        emitted, depth = list[int](), SIZE.depth
        for number in numbers:
            trees, answer, place = self.trees(number), self.store.dialogues.answer(number).tolist(), 0
            while place + depth < len(answer):
                emitted.append(1 + trees[place].along(answer[place : place + depth]))
                place += emitted[-1]
        chains = acceptance_figures(self.arena.net, self.store, EAGLE3_TAPS, numbers, depth)
        return {**chains, "tau": float(np.mean(emitted))}


def make(job: Job) -> None:
    """Train, measure start and end on held-out answers, write ``assets/weights/gto.safetensors``."""
    inputs = gather(job)
    settings, loaded = driver.settings_for(job, inputs.device), inputs.assets.target
    target = TextTarget(loaded.model, loaded.name, sorted(loaded.eos_ids), "eager")
    shipped = load_heads(START, None, loaded, target)
    net, before = independent_copy(shipped).float(), independent_copy(shipped).float()
    ids = torch.arange(target.vocab_size, device=target.device) if net.draft_ids is None else net.draft_ids
    arena = LossInputs(net, before, target, data.draft_index(ids, target.vocab_size))
    state = GtoTraining(arena, inputs.store, inputs.unread, settings, inputs.evaluation_set[:MEASURED])
    read_all(inputs.store, state.held_out, settings.workers)
    run(job, inputs, state, state.save, **{CHANGES: named(WEIGHTS / f"{START}.safetensors")})
