"""Speculative Jacobi decoding keeps the target's distribution above temperature 0: every guess, every uniform draw and every
bonus of whole runs written out on tables, and hundreds of runs of the engine on a tiny image model.
"""

import itertools
from collections import Counter

import pytest
import torch
from torch import Tensor

from specviz.acceptance import exact as rules
from specviz.acceptance.exact import Rejection
from specviz.engine.interfaces import Round, TargetPass
from specviz.engine.loop import Decoding, Recorder
from specviz.engine.sampling import EXTRA, Noise
from specviz.methods.registry import build, get
from specviz.methods.speculative_jacobi import drafter as jacobi_window
from specviz.methods.speculative_jacobi.drafter import JacobiWindow, WindowChain
from specviz.pipeline.image import CodeText
from tests.support.rounds import context
from tests.support.worlds.image import WARM, World, plain_rows
from tests.support.worlds.three_tokens import World as Tables
from tests.support.worlds.three_tokens import total_variation


class Coin(float):
    """A draw against a threshold: how it falls is one more branching."""

    fate: "Fate"

    def __lt__(self, threshold):
        return self.fate.branch([threshold, 1 - threshold]) == 0


class Fate:
    """One way that a run can go, and all ways that leave it: the first branchings are told, the later ones go left."""

    def __init__(self, told, vocab):
        self.told, self.vocab = told, vocab
        self.taken: list[int] = []
        self.others: list[list[int]] = []
        self.weight = 1.0

    def branch(self, probabilities):
        possible = [way for way, probability in enumerate(probabilities) if probability > 0]
        if len(self.taken) < len(self.told):
            way = self.told[len(self.taken)]
        else:
            way = possible[0]
            self.others += [[*self.taken, other] for other in possible[1:]]
        self.taken.append(way)
        self.weight *= probabilities[way]
        return way

    def draw(self, distribution, *place, stream=0):
        return self.branch((distribution / distribution.sum()).tolist())

    def draws(self, distributions, *place, stream=0):
        return torch.tensor([self.draw(distribution) for distribution in distributions], dtype=torch.long)

    def uniform(self, stream, *place):
        if stream == EXTRA:
            return (self.branch([1 / self.vocab] * self.vocab) + 0.5) / self.vocab
        coin = Coin(0.5)
        coin.fate = self
        return coin


def decoded(world: Tables, drafter: JacobiWindow, fate: Fate) -> tuple[int, ...]:
    """A whole run of ``length`` tokens, as the loop goes."""
    text: list[int] = []
    for number in range(world.length):
        left = world.length - len(text)
        if not left:
            break
        here = context([0, *text], number, prompt=1, warp=WARM, room=left, story=False, noise=fate)
        draft = WindowChain().build(drafter, here)
        guesses = draft.tree.host_tokens[1:]
        prefixes = [(*text, *guesses[:place]) for place in range(len(guesses) + 1)]
        scored = TargetPass(torch.stack([world.target[len(prefix)][prefix] for prefix in prefixes]))
        verdict = Rejection().judge(draft, scored, here)
        emitted = [*(guesses[node - 1] for node in verdict.path), verdict.bonus]
        drafter.observe(Round(here, draft, scored, verdict, emitted))
        text += emitted
    return tuple(text)


def distribution_of(world: Tables, made: type[JacobiWindow], size: int, fill: str, patch: pytest.MonkeyPatch) -> Tensor:
    """The distribution of whole runs: every way each of them can go is tried."""
    found, ways, total = torch.zeros((world.vocab,) * world.length, dtype=torch.float64), [[]], 0.0
    while ways:
        fate = Fate(ways.pop(), world.vocab)
        patch.setattr(rules, "draw", fate.draw)
        patch.setattr(jacobi_window, "draws", fate.draws)
        text = decoded(world, made(size, fill, world.vocab), fate)
        found[text] += fate.weight
        total += fate.weight
        ways += fate.others
    assert total == pytest.approx(1.0)
    return found


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("vocab", "length", "size", "fill"),
    [
        (2, 4, 8, "repeat"),
        (2, 4, 2, "repeat"),
        (2, 4, 2, "random"),
        (3, 3, 8, "repeat"),
        (3, 3, 8, "random"),
        (3, 4, 8, "repeat"),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_whole_runs_keep_the_targets_distribution(vocab, length, size, fill, seed, monkeypatch):
    world = Tables(vocab, seed, length=length)
    assert abs(distribution_of(world, JacobiWindow, size, fill, monkeypatch) - world.distribution()).max() < 1e-12


class Likeliest(JacobiWindow):
    """Wrong: guesses the likeliest code where it says that it drew one."""

    def window(self, context, most):
        codes, distributions = super().window(context, most)
        return torch.cat((distributions.argmax(-1), codes[len(distributions) :])), distributions


class Mistaken(JacobiWindow):
    """Wrong: tells another distribution than the one it drew from."""

    def window(self, context, most):
        codes, distributions = super().window(context, most)
        return codes, distributions.flip(1)


@pytest.mark.parametrize("wrong", [Likeliest, Mistaken])
def test_noticed_guesses_that_were_not_drawn_from_their_distribution(wrong, monkeypatch):
    world = Tables(3, 1)
    assert total_variation(distribution_of(world, wrong, 8, "repeat", monkeypatch), world.distribution()) > 0.02


# Drafter, judge, loop, cache and noise together.

CODES, LENGTH, RUNS = 3, 4, 600


@torch.inference_mode()
def exact(world: World) -> Tensor:
    """The distribution of the first codes from the standard class, [code, …]."""
    found = torch.zeros((CODES,) * LENGTH, dtype=torch.float64)
    for text in itertools.product(range(CODES), repeat=LENGTH - 1):
        distributions = torch.softmax(plain_rows(world.loaded, world.target, world.prompt, list(text)).double(), -1)
        found[text] = distributions[range(LENGTH - 1), text].prod() * distributions[-1]
    return found


def probability_of(counts: Tensor, distribution: Tensor) -> float:
    """Pearson's: how likely counts stray from the distribution as far as these do. Rare outcomes are counted together."""
    expected = (distribution * counts.sum()).flatten()
    common = expected >= 5
    pooled = [torch.cat((one.flatten()[common], one.flatten()[~common].sum()[None])) for one in (counts, expected)]
    pooled = [one[pooled[1] > 0] for one in pooled]
    strayed = ((pooled[0] - pooled[1]) ** 2 / pooled[1]).sum()
    return float(torch.special.gammaincc(torch.tensor((len(pooled[0]) - 1) / 2, dtype=torch.float64), strayed / 2))


@pytest.mark.slow
def test_hundreds_of_runs_of_the_engine_follow_the_targets_distribution():
    world, counts, redrawn = World(2.0, 6, CODES), Counter[tuple[int, ...]](), 0
    parts, method = world.parts(WARM), get("speculative_jacobi")
    values = build(method.parameters, {"window": 3}, method.name)
    for seed in range(RUNS):
        composition = method.compose(values, parts)
        recorder = Recorder(CodeText(world.loaded), "path", (6, 6))
        run = Decoding(world.target, composition, world.prompt, WARM, Noise(seed), LENGTH, recorder)
        steps = list(run.steps())
        counts[tuple(run.outcome.output_ids)] += 1
        redrawn += len(steps) > 1
    seen = torch.zeros((CODES,) * LENGTH, dtype=torch.float64)
    for text, times in counts.items():
        seen[text] = times
    assert seen.sum() == RUNS and redrawn > RUNS / 4
    distribution = exact(world)
    assert probability_of(seen, distribution) > 1e-3
    assert probability_of(seen, distribution.flip(3)) < 1e-6, "a distribution that is clearly another one has to be noticed"
