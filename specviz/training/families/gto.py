"""``train gto``, Group Tree Optimization: a drafter is rewarded for whole trees, not for single tokens.

Hu et al. (arXiv 2509.22134). The reward of a tree is a soft maximum over the branches' expected accepted lengths. The gain is the
reward minus that of the reference, the drafter before this training, at the same position. The advantage is the gain, centred and
scaled over a group of adjacent positions. A positive advantage makes the branch that the target followed more likely, within a
clipped ratio. Training learns a low-rank change to EAGLE-3's drafter.

Trees are those of ``trees.dynamic``, grown together for many positions of a dialogue. A start attends to the true keys up to the
start and to the ancestors in the tree, as in ``feature``. The target then runs once over all trees of a group, merged and without
leaves: the probability of a token is in the parent's row.
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

from specviz.drafting.networks.eagle_head import EagleHead
from specviz.engine.interfaces import Target
from specviz.engine.tree import DraftTree
from specviz.methods.gto import branch_lengths, tree_reward
from specviz.models.heads.heads import independent_copy, load_heads
from specviz.models.hub.packed_model import BASE_KEY, named
from specviz.targets.text import TextTarget
from specviz.training import data, driver
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.families.feature import EAGLE3_TAPS, Own, Truth, acceptance_metrics, eagle3_loss, gather, read_all, run
from specviz.training.features import DialogueFeatures, FeatureStore
from specviz.training.optimizer import LowRank
from specviz.training.registry import WEIGHTS


class Size(NamedTuple):
    """Size of a tree. ``width``: beam width, and children per beam node. ``nodes``: number of nodes without the root."""

    depth: int = 5
    width: int = 4
    nodes: int = 24


@dataclass(frozen=True)
class Tree:
    """A draft tree: ``tokens`` and ``parents`` [node], parents before children. The root's token is unused."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    @cached_property
    def paths(self) -> frozenset[tuple[int, ...]]:
        """Token path to each node. Trees that differ only in node order have equal paths."""
        return frozenset(self.down_to(node) for node in range(len(self.tokens)))

    def along(self, text: Sequence[int]) -> int:
        """Return how many leading tokens of ``text``, which continues the root, follow a branch of the tree."""
        return next(length for length in range(len(text), -1, -1) if tuple(text[:length]) in self.paths)

    def down_to(self, node: int) -> tuple[int, ...]:
        """Return the tokens on the path to ``node``, without the root's."""
        return (*self.down_to(self.parents[node]), self.tokens[node]) if node else ()


@torch.no_grad()
def grow_trees(net: EagleHead, tokens: Tensor, features: Tensor, starts: Tensor, size: Size) -> list[Tree]:
    """Return the tree of each start; start i has token i + 1 as the root.

    ``tokens`` [token] and ``features`` [token, tap * hidden]: the whole dialogue. ``starts``: ascending, int64 [start].
    """
    truth, starts = Truth(net, F.embedding(tokens, net.embedding), features), starts.cpu()
    count, device = len(starts), tokens.device
    output, parents = truth.first(starts), torch.zeros(count, 1, dtype=torch.long, device=device)
    value, considered = torch.zeros(count, 1, dtype=torch.float64, device=device), 1
    # Candidates are numbered in order of drafting, with the root as 0. A level has tokens, parents, values [start, beam * width].
    levels, own = list[tuple[Tensor, Tensor, Tensor]](), Own()
    for depth in range(1, size.depth + 1):
        logits = net.logits(output).float()
        best = logits.topk(min(size.width, logits.shape[-1]))
        shares = (best.values - logits.logsumexp(-1, keepdim=True)).clamp_max(0.0).double()
        ids = (best.indices if net.draft_ids is None else net.draft_ids[best.indices]).view(count, -1)
        width = ids.shape[1] // value.shape[1]
        below = (value[:, :, None] + shares.view(*value.shape, width)).flatten(1)
        levels.append((ids, parents.repeat_interleave(width, 1), below))
        # A stable sort, so that ties go to the earlier candidate, as in drafting.
        beam = below.sort(dim=1, descending=True, stable=True).indices[:, : size.width]
        row = (beam // width + torch.arange(count, device=device)[:, None] * value.shape[1]).flatten()
        value, parents, considered = below.gather(1, beam), considered + beam, considered + below.shape[1]
        own = [(keys[row], values[row]) for keys, values in own]
        if depth < size.depth:
            words = F.embedding(ids.gather(1, beam).flatten(), net.embedding)
            output = truth.deeper(starts.repeat_interleave(beam.shape[1]), words, output[row], own, depth)
    # The candidates of highest value form a tree: a parent has at least the child's value and comes first.
    tokens, parents, values = (torch.cat(parts, 1) for parts in zip(*levels, strict=True))
    chosen = values.sort(dim=1, descending=True, stable=True).indices[:, : size.nodes].sort(dim=1).values
    trees = list[Tree]()
    rows = (chosen, tokens.gather(1, chosen), parents.gather(1, chosen))
    for numbers, kept, above in zip(*(part.tolist() for part in rows), strict=True):
        place = {0: 0} | {number + 1: node for node, number in enumerate(numbers, start=1)}
        trees.append(Tree((-1, *kept), (-1, *(place[parent] for parent in above))))
    return trees


class TreeScore(NamedTuple):
    """Reward of a tree, and tokens of the branch with the longest expected accepted length."""

    reward: float
    longest: tuple[int, ...]


def score_trees(
    target: Target, text: Sequence[int], roots: Sequence[int], forests: Sequence[Sequence[Tree]], group: int = 8
) -> list[list[TreeScore]]:
    """Return the target's scores [forest][root] of the trees ``forests`` [forest][root], drafted after ``text[root]``.

    ``roots``: ascending positions. ``group``: number of adjacent positions with trees that one pass scores.
    """
    session, worths, place = target.open(len(text)), [list[TreeScore]() for _ in forests], 0
    try:
        while place < len(roots):
            first = roots[place]
            numbers = [number for number in range(place, len(roots)) if roots[number] < first + group]
            if session.length < first:
                session.prefill(text[session.length : first])
            # One merged tree: the text from ``first`` on, and the distinct inner nodes of all trees.
            tokens = list(text[first : roots[numbers[-1]] + 1])
            parents, stretch = list(range(-1, len(tokens) - 1)), len(tokens)
            shared = {(node - 1, token): node for node, token in enumerate(tokens) if node}
            asked, pairs = [(forest[number], roots[number] - first) for forest in forests for number in numbers], []
            for tree, root in asked:  # (parent in the merged tree, token) of every node
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
"""Rank of the change."""
GROUPS, MEMBERS, SIZE = 4, 8, Size()
"""Groups per dialogue in an update, adjacent prefixes per group, and size of the trees."""
DELTA = 1e-6
"""Term in the denominator that keeps advantages at zero if all gains of a group are equal."""
CLIP = 0.2
WEIGHT = 0.5
"""Weight of the tree loss relative to the cross-entropy."""


class LossInputs(NamedTuple):
    """Inputs of the losses.

    ``net``: drafter in training. ``before``: reference drafter. ``place`` [vocab]: index in the draft vocabulary, or IGNORED.
    """

    net: EagleHead
    before: EagleHead
    target: Target
    place: Tensor


def advantages(gain: Tensor) -> Tensor:
    """Return the advantages [group, member]: ``gain`` centred and divided by the standard deviation within each group."""
    return (gain - gain.mean(1, keepdim=True)) / (gain.std(1, correction=0, keepdim=True) + DELTA)


def surrogate(ratio: Tensor, advantage: Tensor) -> Tensor:
    """Return ``-min(ratio * advantage, clip(ratio) * advantage)`` elementwise."""
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)


def sample_starts(dialogue: DialogueFeatures, groups: int, members: int, generator: np.random.Generator) -> Tensor:
    """Return at most ``groups`` disjoint runs of adjacent starts inside the answer, ascending: int64 [group, member]."""
    first = max(0, dialogue.first - 2)
    room = len(dialogue.tokens) - 2 - first
    run_count = room // members
    if not run_count:
        return torch.zeros(0, members, dtype=torch.long)
    offset = first + int(generator.integers(room - run_count * members + 1))
    runs = np.sort(generator.permutation(run_count)[:groups])
    return torch.from_numpy(offset + runs[:, None] * members + np.arange(members))


def branch_log(
    net: EagleHead, place: Tensor, dialogue: DialogueFeatures, starts: Tensor, branches: Sequence[tuple[int, ...]]
) -> Tensor:
    """Return the log-probability [start] of the branch of each start under ``net``. Branches have at least one token."""
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
    """Comparison of the trees at ``starts`` with the reference's.

    ``gain`` [start]: gain in reward over the reference, on the CPU. ``branches`` [start]: branch to make more or less likely, or
    an empty tuple.
    """

    starts: Tensor
    gain: Tensor
    advantage: Tensor
    branches: tuple[tuple[int, ...], ...]


@torch.no_grad()
def compare_trees(arena: LossInputs, dialogue: DialogueFeatures, starts: Tensor, size: Size) -> TreeComparison:
    """Grow the trees of both drafters at ``starts`` [group, member] and compare rewards.

    The branch of a start is the part of the target's continuation that the tree contains, or else the branch with the longest
    expected length. In groups where both drafters have the same trees, branches are empty.
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
    # Equal trees have no gain, so they are scored only if the branch is missing.
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
    """Return the clipped surrogate loss, summed over the starts, times ``scale``; None if there is no gradient."""
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
    """Training of a low-rank change to the drafter of ``arena`` on the reward of trees."""

    unit = "prefixes"

    def __init__(
        self, arena: LossInputs, store: FeatureStore, training: Sequence[int], settings: Schedule, held_out: Sequence[int] = ()
    ) -> None:
        super().__init__(settings, LowRank(arena.net, RANK))
        self.arena, self.store, self.training, self.held_out = arena, store, training, held_out
        self.settle()

    def step(self, share: float) -> Step:
        """Return gradients of the cross-entropy and of the tree loss at a few prefixes of each dialogue."""
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
        """Return the tree after every token of a dialogue, from the last prompt token to the second-to-last answer token."""
        dialogue = self.store.get([number])[0]
        starts = torch.arange(dialogue.first - 2, len(dialogue.tokens) - 2)
        features = dialogue.features[:, EAGLE3_TAPS].flatten(1)
        return grow_trees(self.arena.net, dialogue.tokens, features, starts, SIZE)

    def metrics(self) -> dict[str, Any]:
        """Return the acceptance on held-out answers without and with the change."""
        with self.using({name: torch.zeros_like(value) for name, value in self.optimizer.parameters.items()}):
            start = self.accepted(self.held_out)
        return {"start": start, "gto": self.accepted(self.held_out)}

    def accepted(self, numbers: Sequence[int]) -> dict[str, float]:
        """Return the acceptance along greedy answers: ``tau`` with trees, and metrics of chains."""
        emitted, depth = list[int](), SIZE.depth
        for number in numbers:
            trees, answer, place = self.trees(number), self.store.dialogues.answer(number).tolist(), 0
            while place + depth < len(answer):
                emitted.append(1 + trees[place].along(answer[place : place + depth]))
                place += emitted[-1]
        chains = acceptance_metrics(self.arena.net, self.store, EAGLE3_TAPS, numbers, depth)
        return {**chains, "tau": float(np.mean(emitted))}


def make(job: Job) -> None:
    """Train, measure on held-out answers, and write ``assets/weights/gto.safetensors``."""
    inputs = gather(job)
    settings, loaded = driver.settings_for(job, inputs.device), inputs.assets.target
    target = TextTarget(loaded.model, loaded.name, sorted(loaded.eos_ids), "eager")
    shipped = load_heads(START, None, loaded, target)
    net, before = independent_copy(shipped).float(), independent_copy(shipped).float()
    ids = torch.arange(target.vocab_size, device=target.device) if net.draft_ids is None else net.draft_ids
    arena = LossInputs(net, before, target, data.draft_index(ids, target.vocab_size))
    state = GtoTraining(arena, inputs.store, inputs.unread, settings, inputs.evaluation_set[:MEASURED])
    read_all(inputs.store, state.held_out, settings.workers)
    run(job, inputs, state, state.save, **{BASE_KEY: named(WEIGHTS / f"{START}.safetensors")})
