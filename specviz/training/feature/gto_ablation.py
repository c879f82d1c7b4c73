"""The loop of the recipe for GTO, and its control: the same updates on the same dialogues without the tree's reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specviz.training.common import trainer
from specviz.training.common.features import FeatureStore
from specviz.training.common.optimizer import Optimizer
from specviz.training.feature import eagle3, gto
from specviz.training.feature.acceptance_eval import foresight
from specviz.training.feature.gto import Arena, Groups, LowRank
from specviz.training.feature.tree_reward import Size, Tree, grown, worth

ENOUGH = 256
STRIDE = 5


@dataclass(frozen=True)
class Settings:
    """What may be changed from run to run.

    ``minutes`` of training time of the rewarded arm; an update reads ``batch`` dialogues, one at a time on each of
    ``workers`` cores. ``average`` is the share that an average of the weights keeps at each update.
    """

    minutes: float = 10.0
    batch: int = 2
    rank: int = 16
    peak: float = 0.003
    average: float = 0.97
    every: int = 10
    workers: int = 2
    seed: int = 0
    resume: bool = False
    groups: Groups = field(default_factory=Groups)


@dataclass
class Bench:
    """All that both arms work on. ``change`` is applied to ``arena.net``."""

    arena: Arena
    change: LowRank
    store: FeatureStore
    training: Sequence[int]
    optimizer: Optimizer

    @staticmethod
    def of(arena: Arena, store: FeatureStore, training: Sequence[int], settings: Settings) -> Bench:
        """From the start: the network as it is now. Dialogues whose features are at hand are used, if they suffice."""
        change = LowRank(arena.net, settings.rank, settings.seed)
        known = [number for number in training if store.has(number)]
        optimizer = Optimizer(change.factors, average=settings.average)
        return Bench(arena, change, store, known if len(known) >= ENOUGH else training, optimizer)

    def again(self, settings: Settings) -> Bench:
        """The same from its very start, for another arm."""
        self.change.restart()
        return replace(self, optimizer=Optimizer(self.change.factors, average=settings.average))


@dataclass
class Tally:
    """Sums over the prefixes of an update: how many there were, whose trees differed, what was gained in all."""

    prefixes: int = 0
    differing: int = 0
    gain: float = 0.0

    def and_of(self, found: Sequence[gto.Judged]) -> Tally:
        """These sums with those of more dialogues."""
        gain = torch.cat([one.gain for one in found]) if found else torch.zeros(0)
        differing = self.differing + int((gain != 0).sum())
        return Tally(self.prefixes + len(gain), differing, self.gain + float(gain.sum()))


def numbers_of(bench: Bench, update: int, settings: Settings) -> list[int]:
    """The dialogues of an update, the same for both arms and after a resumption."""
    generator = np.random.default_rng([settings.seed, update])
    return [int(number) for number in generator.choice(np.asarray(bench.training), settings.batch, replace=False)]


def update(bench: Bench, number: int, rate: float, settings: Settings, rewarded: bool) -> tuple[float, list[gto.Judged]]:
    """Update ``number``: the loss, and what was rewarded."""
    numbers, judged = numbers_of(bench, number, settings), list[gto.Judged]()
    arena, how = bench.arena, settings.groups
    answers = sum(len(bench.store.dialogues.answer(one)) for one in numbers)
    prefixes = settings.batch * how.groups * how.members
    bench.change.put()

    def loss(part: tuple[int, int]) -> Tensor:
        place, dialogue = part
        seen = bench.store.get([dialogue])[0]
        generator = torch.Generator().manual_seed(settings.seed + 1_000_003 * number + place)
        total = eagle3.loss(arena.net, arena.place, seen, generator, 1.0 / answers)
        starts = gto.chosen_starts(seen, how, np.random.default_rng([settings.seed, number, place]))
        if not rewarded or not len(starts):
            return total
        found = gto.judged(arena, seen, starts, how.size)
        judged.append(found)
        pulled = gto.tree_loss(arena, seen, found, gto.WEIGHT / prefixes)
        return total if pulled is None else total + pulled

    whole, value = trainer.gradients(list(enumerate(numbers)), loss, bench.change.leaves, settings.workers)
    bench.optimizer.step(bench.change.gradients(whole), rate, 0.0, settings.workers)
    return value, judged


def reward_arm(
    bench: Bench, settings: Settings, checkpoint: Path, report: trainer.Report
) -> tuple[trainer.Progress, list[float]]:
    """Train with the reward until the minutes are spent; how far it got, and the rate of every update."""
    goes_on = trainer.goes_on(settings.resume, checkpoint)
    progress, rates = _resumed(bench, checkpoint) if goes_on else (trainer.Progress(), [])
    clock = trainer.Clock(progress, settings.minutes)
    recent, tally = [], Tally()
    clock.start()
    while clock.share < 1:
        rates.append(trainer.rate(settings.peak, clock.share, progress.updates, warm=10))
        value, found = update(bench, progress.updates, rates[-1], settings, rewarded=True)
        recent.append(value)
        tally = tally.and_of(found)
        progress.updates += 1
        progress.tokens += sum(len(one.gain) for one in found)
        clock.stop()
        if progress.updates % settings.every == 0 or clock.share >= 1:
            _milestone(bench, checkpoint, progress, rates, float(np.mean(recent)), tally, report)
            recent, tally = [], Tally()
            clock.start()
    return progress, rates


def control_arm(bench: Bench, settings: Settings, rates: Sequence[float], report: trainer.Report) -> None:
    """As many updates on the same dialogues at the same rates, by the cross-entropy alone."""
    recent = []
    for number, rate in enumerate(rates):
        recent.append(update(bench, number, rate, settings, rewarded=False)[0])
        if (number + 1) % settings.every == 0 or number + 1 == len(rates):
            report({"control": number + 1, "loss": float(np.mean(recent))})
            recent = []


def _milestone(
    bench: Bench, checkpoint: Path, progress: trainer.Progress, rates: Sequence[float], loss: float, tally: Tally,
    report: trainer.Report,
) -> None:  # fmt: skip
    entry = {
        "updates": progress.updates,
        "minutes": progress.seconds / 60,
        "prefixes": progress.tokens,
        "loss": loss,
        "differing": tally.differing / max(1, tally.prefixes),
        "gain": tally.gain / max(1, tally.prefixes),
    }
    progress.history.append(entry)
    tensors = {f"factor.{name}": value for name, value in bench.change.factors.items()} | bench.optimizer.state
    trainer.write_checkpoint(checkpoint, {**tensors, "rates": torch.tensor(rates, dtype=torch.float64)}, progress)
    report(entry)


def _resumed(bench: Bench, checkpoint: Path) -> tuple[trainer.Progress, list[float]]:
    tensors, progress = trainer.read_checkpoint(checkpoint)
    rates = tensors.pop("rates").tolist()
    with torch.no_grad():
        for name, value in bench.change.factors.items():
            value.copy_(tensors[f"factor.{name}"])
        for name, value in bench.optimizer.state.items():
            value.copy_(tensors[name])
    bench.optimizer.updates = progress.updates
    return progress, rates


Forests = Mapping[int, Sequence[Tree]]


@torch.inference_mode()
def forests_of(bench: Bench, numbers: Sequence[int], size: Size, factors: dict[str, Tensor]) -> dict[int, list[Tree]]:
    """For each dialogue the tree behind every token from the last of its prompt to the last but one, under ``factors``."""
    bench.change.put(factors)
    found = {}
    for number in numbers:
        seen = bench.store.get([number])[0]
        starts = torch.arange(seen.first - 2, len(seen.tokens) - 2, device=seen.tokens.device)
        features = seen.features[:, eagle3.TAPS].flatten(1)
        found[number] = grown(bench.arena.net, seen.tokens, features, starts, size)
    return found


def tau_of(bench: Bench, forests: Forests, depth: int) -> float:
    """Tokens a step, bonus included, of decoding these dialogues' (greedy) answers with their trees."""
    steps, emitted = 0, 0
    for number, trees in forests.items():
        answer = [int(token) for token in bench.store.dialogues.answer(number)]
        done = 0
        while done + depth + 1 <= len(answer):  # a step cut by the end of the answer is left out
            followed = trees[done].along(answer[done:])
            done, steps, emitted = done + followed + 1, steps + 1, emitted + followed + 1
    return emitted / max(1, steps)


def rewards_of(bench: Bench, arms: Sequence[Forests], members: int) -> list[float]:
    """Each arm's mean tree reward at the same places: every few tokens of the dialogues' answers."""
    sums, places = [0.0] * len(arms), 0
    for number in arms[0]:
        text = [int(token) for token in bench.store.ids(number)]
        first = len(text) - len(bench.store.dialogues.answer(number))
        taken = range(0, len(arms[0][number]), STRIDE)
        roots = [first - 1 + place for place in taken]
        forests = [[arm[number][place] for place in taken] for arm in arms]
        found = worth(bench.arena.target, text, roots, forests, members)
        sums = [total + sum(one.reward for one in row) for total, row in zip(sums, found, strict=True)]
        places += len(roots)
    return [total / max(1, places) for total in sums]


def measured(
    bench: Bench, arms: Mapping[str, dict[str, Tensor]], numbers: Sequence[int], size: Size, say: Callable[[str], None]
) -> dict[str, dict[str, float]]:
    """τ and mean tree reward of each arm, on held-out greedy answers, all arms at the same places; and by depth how often
    the truth was drafted first or among five."""
    forests = {name: forests_of(bench, numbers, size, factors) for name, factors in arms.items()}
    worth = rewards_of(bench, list(forests.values()), 4 * STRIDE)
    found = {}
    for (name, forest), reward in zip(forests.items(), worth, strict=True):
        bench.change.put(arms[name])
        agreement = foresight(bench.arena.net, bench.store, eagle3.TAPS, numbers, size.depth)
        agreement.pop("tau")  # of chains; the trees' own counts
        found[name] = {"tau": tau_of(bench, forest, size.depth), "reward": reward, **agreement}
        say(f"{name}: " + "  ".join(f"{key} {value:.4f}" for key, value in found[name].items()))
    return found


def unlearned(change: LowRank) -> dict[str, Tensor]:
    """Factors of no change at all: the start."""
    return {name: torch.zeros_like(value) for name, value in change.factors.items()}
