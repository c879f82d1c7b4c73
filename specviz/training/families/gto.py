"""``train gto``, Group Tree Optimization: a drafter is rewarded for the tree it would draft, not for single tokens.

Hu et al. 2026 (arXiv 2509.22134). The reward of a tree is its soft longest expected branch under the target. It is
compared with that of the tree which the drafter before this training would have grown in the same place, and with those of
neighbouring places; a drafter that did better than with its neighbours makes the branch that the target followed likelier,
within a clipped ratio. Only a low-rank change to the matrices of EAGLE-3's drafter is trained.

Trees are those of ``trees.dynamic`` (expand, then rerank), grown together for many places of a dialogue: every start attends to
the same true keys up to its place and to its own nodes' ancestors, as in ``unrolling``. The target then runs once over all of a
group's trees, which share what they have in common, and is not asked about leaves: a token's probability stands in its parent's
row. Axis names: ``group``, ``member`` (of a group: adjacent prefixes), ``start`` (a position that drafts), ``beam``, ``node``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.feature_net import FeatureNet, attend
from specviz.engine.interfaces import Target
from specviz.engine.tree import DraftTree
from specviz.methods.gto.expected_length import branch_lengths, tree_reward
from specviz.models.heads.heads import load_heads
from specviz.models.heads.lora_heads import CHANGES, digest, independent_copy
from specviz.targets.text import TextTarget
from specviz.training import acceptance, data, driver
from specviz.training.driver import Schedule, Step, TrainState
from specviz.training.families.feature import acceptance_figures, gather, read_all, run
from specviz.training.families.unrolling import EAGLE3_TAPS, eagle3_loss
from specviz.training.features import DialogueFeatures, FeatureStore
from specviz.training.optimizer import LowRank
from specviz.training.registry import WEIGHTS, Job


@dataclass(frozen=True)
class Size:
    """Of every tree: how deep, how many children and beam nodes, how many nodes are kept (the root not counted)."""

    depth: int = 5
    width: int = 4
    nodes: int = 24


@dataclass(frozen=True)
class Tree:
    """``tokens`` and ``parents`` by node, parents before children; the root's token is not looked at."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    @cached_property
    def paths(self) -> frozenset[tuple[int, ...]]:
        """The tokens down to each node: equal for two trees that differ only in the order of their nodes."""
        return frozenset(self.down_to(node) for node in range(len(self.tokens)))

    def along(self, text: Sequence[int]) -> int:
        """How many tokens of ``text``, which comes after the root, the tree holds one below the other."""
        below = {
            (parent, token): node for node, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=False)) if node
        }
        node, length = 0, 0
        for token in text:
            if (node, token) not in below:
                break
            node, length = below[node, token], length + 1
        return length

    def down_to(self, node: int) -> tuple[int, ...]:
        """The tokens from below the root to ``node``."""
        path: tuple[int, ...] = ()
        while node:
            node, path = self.parents[node], (self.tokens[node], *path)
        return path


@torch.no_grad()
def grown(net: FeatureNet, tokens: Tensor, features: Tensor, starts: Tensor, size: Size) -> list[Tree]:
    """The tree of each of ``starts`` (int64 [start]); start i drafts behind root i + 1.

    ``tokens`` [token] and ``features`` [token, tap * hidden] are the whole dialogue's.
    """
    truth = Truth(net, tokens, features, starts)
    output, parents = truth.first(), torch.zeros(len(starts), 1, dtype=torch.long, device=starts.device)
    value = torch.zeros(len(starts), 1, dtype=torch.float64, device=starts.device)
    # All that was considered, in order: candidate 0 is the root, a level has tokens, parents and values [start, beam * width].
    levels, own, count = list[tuple[Tensor, Tensor, Tensor]](), list[tuple[Tensor, Tensor]](), 1
    for depth in range(1, size.depth + 1):
        logits = _wide(net.logits(output))
        best = logits.topk(min(size.width, logits.shape[-1]))
        shares = (best.values - logits.logsumexp(-1, keepdim=True)).clamp_max(0.0).double()
        ids = (best.indices if net.draft_ids is None else net.draft_ids[best.indices]).view(len(starts), -1)
        width = ids.shape[1] // value.shape[1]
        below = (value[:, :, None] + shares.view(*value.shape, width)).flatten(1)
        levels.append((ids, parents.repeat_interleave(width, 1), below))
        # A stable sort, so that of two equal candidates the earlier one wins, as it does while drafting.
        beam = below.sort(dim=1, descending=True, stable=True).indices[:, : size.width]
        row = (beam // width + torch.arange(len(starts), device=beam.device)[:, None] * value.shape[1]).flatten()
        value, parents, count = below.gather(1, beam), count + beam, count + below.shape[1]
        own = [(keys[row], values[row]) for keys, values in own]
        if depth < size.depth:
            output = truth.deeper(ids.gather(1, beam), output[row], own, depth)
    # The candidates of highest value. A parent is never worth less, and it is earlier.
    tokens, parents, values = (torch.cat(parts, 1) for parts in zip(*levels, strict=True))
    chosen = values.sort(dim=1, descending=True, stable=True).indices[:, : size.nodes].sort(dim=1).values
    trees = list[Tree]()
    rows = (chosen, tokens.gather(1, chosen), parents.gather(1, chosen))
    for numbers, kept, above in zip(*(part.tolist() for part in rows), strict=True):
        place = {0: 0} | {number + 1: node for node, number in enumerate(numbers, start=1)}
        trees.append(Tree((-1, *kept), (-1, *(place[parent] for parent in above))))
    return trees


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


class Truth:
    """The network over the true features: keys and values that every start sees up to its own place."""

    def __init__(self, net: FeatureNet, tokens: Tensor, features: Tensor, starts: Tensor) -> None:
        self._net, self._starts = net, starts
        count = int(starts.max()) + 1
        net.reach(count + 64)
        places = torch.arange(count, device=tokens.device)
        self._x, self._residual = net.inputs(tokens[1 : count + 1], net.fuse(features[:count]))
        self._keys, self._values = net.keys_values(self._x, places)
        self._hidden = places[None] > starts[:, None]

    def first(self) -> Tensor:
        """Outputs [start, hidden] at the starts themselves: each has its root's children to offer."""
        net, starts = self._net, self._starts
        attention = attend(net.queries(self._x[starts], starts), self._keys, self._values, self._hidden)
        return net.finish(self._residual[starts], attention)

    def deeper(self, tokens: Tensor, features: Tensor, own: list[tuple[Tensor, Tensor]], depth: int) -> Tensor:
        """Outputs [start * beam, hidden] at nodes ``tokens`` [start, beam] below nodes whose outputs are ``features``.

        ``own`` are the keys and values of each node's ancestors; the nodes' own are appended to it.
        """
        net, beam = self._net, tokens.shape[1]
        x, residual = net.inputs(tokens.flatten(), features)
        places = self._starts.repeat_interleave(beam) + depth
        own.append(net.keys_values(x, places))
        hidden = self._hidden.repeat_interleave(beam, 0)
        return net.finish(residual, attend(net.queries(x, places), self._keys, self._values, hidden, own))


@dataclass(frozen=True)
class Worth:
    """A tree's ``reward``, and its ``longest`` branch by expectation, as tokens."""

    reward: float
    longest: tuple[int, ...]

    @staticmethod
    def of(tree: Tree, probability: Sequence[float]) -> Worth:
        """From the target's probability of each drafted node."""
        lengths = branch_lengths(tree.parents, (1.0, *probability))
        return Worth(tree_reward(lengths.values()), tree.down_to(max(lengths, key=lengths.__getitem__)))


def worth(
    target: Target, text: Sequence[int], roots: Sequence[int], forests: Sequence[Sequence[Tree]], group: int = 8
) -> list[list[Worth]]:
    """``[forest][root]``: what the target makes of each forest's tree behind ``text[root]``. ``roots`` ascend.

    Trees that stand behind ``group`` adjacent tokens are scored in one pass.
    """
    session, worths, place = target.open(len(text)), [list[Worth]() for _ in forests], 0
    try:
        while place < len(roots):
            first = roots[place]
            numbers = [number for number in range(place, len(roots)) if roots[number] < first + group]
            if session.length < first:
                session.prefill(text[session.length : first])
            # One tree: the text from there on and all inner nodes of the trees behind its tokens, each only once.
            tokens = list(text[first : roots[numbers[-1]] + 1])
            parents, stretch = list(range(-1, len(tokens) - 1)), len(tokens)
            shared = {(node - 1, token): node for node, token in enumerate(tokens) if node}
            asked, pairs = [(forest[number], roots[number] - first) for forest in forests for number in numbers], []
            for tree, root in asked:  # of each drafted node its parent there, and its token
                inner, where = set(tree.parents), {0: root}
                for node, (parent, token) in enumerate(zip(tree.parents[1:], tree.tokens[1:], strict=True), start=1):
                    pairs.append(pair := (where[parent], token))
                    if node in inner:
                        if pair not in shared:
                            shared[pair] = len(tokens)
                            tokens.append(token)
                            parents.append(where[parent])
                        where[node] = shared[pair]
            logits = _wide(session.score(DraftTree.of(tokens, parents, target.device)).logits)
            session.keep(range(stretch))
            rows, columns = torch.tensor(pairs, device=logits.device).T
            found = iter((logits[rows, columns] - logits.logsumexp(-1)[rows]).exp().tolist())
            for number, (tree, _) in enumerate(asked):
                probability = [next(found) for _ in tree.tokens[1:]]
                worths[number // len(numbers)].append(Worth.of(tree, probability))
            place = numbers[-1] + 1
    finally:
        session.close()
    return worths


START = "eagle3"
STRIDE = 5
MEASURED = 40
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
    truth = Truth(net, dialogue.tokens, dialogue.features[:, EAGLE3_TAPS].flatten(1), starts)
    deepest = max(map(len, branches))
    tokens = torch.tensor([(*branch, *branch[:1] * (deepest - len(branch))) for branch in branches], device=starts.device)
    length = torch.tensor([len(branch) for branch in branches], device=starts.device)
    output, total, own = truth.first(), torch.zeros(len(starts), device=starts.device), list[tuple[Tensor, Tensor]]()
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
    features = dialogue.features[:, EAGLE3_TAPS].flatten(1)
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


@dataclass(frozen=True)
class Settings(Schedule):
    """An update reads ``batch`` dialogues, one in a pass; ``rank`` is the change's."""

    peak: float = 0.0008
    warm: int = 10
    every: float = 1.0
    batch: int = 8
    part: int = 1
    rank: int = 16
    average: float = 0.97
    groups: Groups = field(default_factory=Groups)


class GtoTraining(TrainState):
    """A low-rank change to the drafter of ``arena``, learned with the tree's reward."""

    unit = "prefixes"
    settings: Settings

    def __init__(
        self, arena: Arena, store: FeatureStore, training: Sequence[int], settings: Settings, held_out: Sequence[int] = ()
    ) -> None:
        change = LowRank(arena.net, settings.rank, settings.seed)
        super().__init__(settings, change.matrices, change)
        self.arena, self.store, self.training, self.held_out = arena, store, training, held_out
        self.settle()

    def step(self, share: float) -> Step:
        """Cross-entropy, and the reward of trees grown from a few prefixes of each dialogue."""
        number, arena, how, seed = self.progress.updates, self.arena, self.settings.groups, self.settings.seed
        batch, judgements = self.settings.batch, list[Judged]()
        numbers = data.in_turn(self.training, number * batch, batch, [seed])
        answers = sum(len(self.store.dialogues.answer(dialogue_number)) for dialogue_number in numbers)
        prefixes = batch * how.groups * how.members

        def loss(part: Sequence[tuple[int, int]]) -> Tensor:
            ((place, dialogue_number),) = part
            dialogue = self.store.get([dialogue_number])[0]
            generator = torch.Generator().manual_seed(seed + 1_000_003 * number + place)
            total = eagle3_loss(arena.net, arena.place, dialogue, generator, 1.0 / answers)
            starts = chosen_starts(dialogue, how, np.random.default_rng([seed, number, place]))
            if not len(starts):
                return total
            judgement = judged(arena, dialogue, starts, how.size)
            judgements.append(judgement)
            pulled = tree_loss(arena, dialogue, judgement, WEIGHT / prefixes)
            return total if pulled is None else total + pulled

        step = self.learn(list(enumerate(numbers)), loss, 0)
        return step._replace(tokens=sum(len(judgement.gain) for judgement in judgements))

    @torch.inference_mode()
    def trees(self, number: int, size: Size) -> list[Tree]:
        """The tree behind every token of a dialogue from the last of its prompt to the last but one."""
        dialogue = self.store.get([number])[0]
        starts = torch.arange(dialogue.first - 2, len(dialogue.tokens) - 2, device=dialogue.tokens.device)
        return grown(self.arena.net, dialogue.tokens, dialogue.features[:, EAGLE3_TAPS].flatten(1), starts, size)

    def figures(self) -> dict[str, Any]:
        """Of the start and of the change, on held-out answers."""
        size = self.settings.groups.size
        with self.using({name: torch.zeros_like(value) for name, value in self.optimizer.parameters.items()}):
            start = self.accepted(self.held_out, size)
        return {"start": start, "gto": self.accepted(self.held_out, size)}

    def accepted(self, numbers: Sequence[int], size: Size) -> dict[str, float]:
        """Along these greedy answers: tokens a step with the trees, bonus included, their mean reward at every few tokens, and by
        depth how often the truth was drafted first or among five."""
        emitted, rewards = list[int](), list[float]()
        for number in numbers:
            trees, answer = self.trees(number, size), self.store.dialogues.answer(number).tolist()
            hops = [tree.along(answer[place:]) for place, tree in enumerate(trees)]
            emitted += [1 + hops[place] for place in acceptance.steps_along(len(answer), size.depth, hops.__getitem__)]
            text = self.store.ids(number).tolist()
            roots = range(len(text) - len(answer) - 1, len(text) - len(answer) - 1 + len(trees), STRIDE)
            (found,) = worth(self.arena.target, text, roots, [trees[::STRIDE]], 4 * STRIDE)
            rewards += [tree_worth.reward for tree_worth in found]
        chains = acceptance_figures(self.arena.net, self.store, EAGLE3_TAPS, numbers, size.depth)
        return {**chains, "tau": float(np.mean(emitted)), "reward": float(np.mean(rewards))}


def make(job: Job) -> None:
    """Train, measure start and end on held-out answers, write ``assets/weights/gto.safetensors``."""
    inputs = gather(job)
    settings, loaded = driver.settings_for(job, inputs.device, Settings), inputs.assets.target
    target = TextTarget(loaded.model, loaded.name, sorted(loaded.eos_ids), "eager")
    shipped = load_heads(START, None, loaded, target)
    net, before = independent_copy(shipped).float(), independent_copy(shipped).float()
    ids = torch.arange(target.vocab_size, device=target.device) if net.draft_ids is None else net.draft_ids
    arena = Arena(net, before, target, data.places_in(ids, target.vocab_size))
    state = GtoTraining(arena, inputs.store, inputs.unread, settings, inputs.judged_on[:MEASURED])
    read_all(inputs.store, state.held_out, settings.workers)
    run(job, inputs, state, state.save, **{CHANGES: f"{START}.safetensors {digest(WEIGHTS / f'{START}.safetensors')}"})
