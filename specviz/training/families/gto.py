"""``train gto``, Group Tree Optimization: a drafter is rewarded for the tree it would draft, not for single tokens.

Hu et al. 2026 (arXiv 2509.22134). The reward of a tree is its soft longest expected branch under the target. It is
compared with that of the tree which the drafter before this training would have grown in the same place, and with those of
neighbouring places; a drafter that did better than with its neighbours makes the branch that the target followed likelier,
within a clipped ratio. Only a low-rank change to the matrices of EAGLE-3's drafter is trained.
Axis names: ``group``, ``member`` (of a group: adjacent prefixes), ``start``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.feature_net import FeatureNet
from specviz.engine.interfaces import Target
from specviz.models.drafters.heads import load_heads
from specviz.models.drafters.lora_heads import CHANGES, digest, independent_copy
from specviz.targets.text import TextTarget
from specviz.training import acceptance, data, driver, features
from specviz.training.driver import Schedule, Step, TrainState
from specviz.training.families import eagle3
from specviz.training.families.feature import acceptance_figures, read_all
from specviz.training.families.gto_trees import Size, Tree, Truth, grown, worth
from specviz.training.features import DialogueFeatures, FeatureStore, TargetAssets
from specviz.training.optimizer import LowRank
from specviz.training.registry import WEIGHTS, Job

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
    truth = Truth(net, dialogue.tokens, dialogue.features[:, eagle3.TAPS].flatten(1), starts)
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

    def __init__(self, arena: Arena, store: FeatureStore, training: Sequence[int], settings: Settings) -> None:
        change = LowRank(arena.net, settings.rank, settings.seed)
        super().__init__(settings, change.matrices, change)
        self.arena, self.store, self.training = arena, store, training
        self._gains: list[Tensor] = []
        self.settle()

    def numbers_of(self, update: int) -> list[int]:
        """The dialogues of an update, the same after a resumption."""
        batch = self.settings.batch
        return data.in_turn(self.training, update * batch, batch, [self.settings.seed])

    def step(self, share: float) -> Step:
        """Cross-entropy, and the reward of trees grown from a few prefixes of each dialogue."""
        number, arena, how, seed = self.progress.updates, self.arena, self.settings.groups, self.settings.seed
        numbers, judgements = self.numbers_of(number), list[Judged]()
        answers = sum(len(self.store.dialogues.answer(dialogue_number)) for dialogue_number in numbers)
        prefixes = self.settings.batch * how.groups * how.members

        def loss(part: Sequence[tuple[int, int]]) -> Tensor:
            ((place, dialogue_number),) = part
            dialogue = self.store.get([dialogue_number])[0]
            generator = torch.Generator().manual_seed(seed + 1_000_003 * number + place)
            total = eagle3.loss(arena.net, arena.place, dialogue, generator, 1.0 / answers)
            starts = chosen_starts(dialogue, how, np.random.default_rng([seed, number, place]))
            if not len(starts):
                return total
            judgement = judged(arena, dialogue, starts, how.size)
            judgements.append(judgement)
            pulled = tree_loss(arena, dialogue, judgement, WEIGHT / prefixes)
            return total if pulled is None else total + pulled

        step = self.learn(list(enumerate(numbers)), loss, 0)
        self._gains += [judgement.gain for judgement in judgements]
        return step._replace(tokens=sum(len(judgement.gain) for judgement in judgements))

    def measure(self) -> dict[str, float]:
        """Of the prefixes since the last milestone, the share whose trees differed and the mean gain."""
        gain = torch.cat(self._gains) if self._gains else torch.zeros(1)
        self._gains = []
        return {"differing": float((gain != 0).float().mean()), "gain": float(gain.mean())}

    @torch.inference_mode()
    def trees(self, number: int, size: Size) -> list[Tree]:
        """The tree behind every token of a dialogue from the last of its prompt to the last but one."""
        dialogue = self.store.get([number])[0]
        starts = torch.arange(dialogue.first - 2, len(dialogue.tokens) - 2, device=dialogue.tokens.device)
        return grown(self.arena.net, dialogue.tokens, dialogue.features[:, eagle3.TAPS].flatten(1), starts, size)

    def figures(self, numbers: Sequence[int], size: Size) -> dict[str, float]:
        """Along these greedy answers: tokens a step with the trees, bonus included, their mean reward at every few tokens, and by
        depth how often the truth was drafted first or among five."""
        emitted, rewards = list[int](), list[float]()
        for number in numbers:
            trees, answer = self.trees(number, size), self.store.dialogues.answer(number).tolist()
            hops = [tree.along(answer[place:]) for place, tree in enumerate(trees)]
            emitted += [1 + hops[place] for place in acceptance.steps_along(len(answer), size.depth, hops.__getitem__)]
            text, places = self.store.ids(number).tolist(), range(0, len(trees), STRIDE)
            roots = [len(text) - len(answer) - 1 + place for place in places]
            found = worth(self.arena.target, text, roots, [[trees[place] for place in places]], 4 * STRIDE)
            rewards += [tree_worth.reward for tree_worth in found[0]]
        chains = acceptance_figures(self.arena.net, self.store, eagle3.TAPS, numbers, size.depth)
        return {**chains, "tau": float(np.mean(emitted)), "reward": float(np.mean(rewards))}


def make(job: Job) -> None:
    """Train, measure start and end on held-out answers, write ``assets/weights/gto.safetensors``."""
    files = data.find(job.data)
    assets = features.target_assets(job.device)
    settings = driver.settings_for(job, assets.target.device, Settings)
    state, held_out = prepare(assets, data.read_all(files), settings)
    print(f"{len(state.training)} dialogues to learn from, {len(held_out)} to measure on; {settings}", flush=True)
    read_all(state.store, held_out, settings.workers)
    driver.train(state, driver.checkpoint_of(job.recipe.name))
    measure = partial(state.figures, held_out, settings.groups.size)
    with state.using({name: torch.zeros_like(value) for name, value in state.optimizer.parameters.items()}):
        found: dict[str, Any] = {"start": measure()}
    found["gto"] = driver.figures_at_rest(job, state, state.save, measure)
    base = {CHANGES: f"{START}.safetensors {digest(WEIGHTS / f'{START}.safetensors')}"}
    line = data.dialogues_line(files)
    driver.finish(job, state, found, line, state.save, **base, tokenizer_hash=assets.target.tokenizer_hash)


def prepare(assets: TargetAssets, dialogues: data.Dialogues, settings: Settings) -> tuple[GtoTraining, list[int]]:
    """The rewarded training, and the held-out dialogues with greedy answers that everything is measured on."""
    loaded = assets.target
    target = TextTarget(loaded.model, loaded.name, sorted(loaded.eos_ids), "eager")
    shipped = load_heads(START, None, loaded, target)
    net, before = independent_copy(shipped).float(), independent_copy(shipped).float()
    training, held_out = data.split(dialogues)
    _, unread = data.set_apart(dialogues, training)
    store = features.store_for(loaded.model, loaded.name, dialogues, assets.markers)
    ids = torch.arange(target.vocab_size, device=target.device) if net.draft_ids is None else net.draft_ids
    arena = Arena(net, before, target, data.places_in(ids, target.vocab_size))
    return GtoTraining(arena, store, unread, settings), data.greedy_only(dialogues, held_out)[:MEASURED]
