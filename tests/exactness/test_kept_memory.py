"""Runs with one seed and a memory that is kept: each of them has the target's distribution, whatever the drafter learned.

A drafter that has learned from a run knows something of the random numbers of that run. Were the next run with the same seed
judged with them again, its draft would depend on its own uniform draws, and rejection sampling would not be exact.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specviz.acceptance.exact import Rejection
from specviz.drafting.runtimes.null import NullDrafter
from specviz.drafting.trees.sampled import Sampled
from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import Composition, Proposal, TargetPass
from specviz.engine.sampling import ACCEPT, TARGET, Noise, Warp
from specviz.engine.stop import Stop
from specviz.engine.tree import chain
from specviz.methods.bandits import ExponentialWeights
from specviz.methods.hedgespec import NormalHedge, recalled
from specviz.methods.hedgespec.selection import Arm, DrafterSelector, Hindsight
from specviz.methods.registry import Method, NoParameters, get
from specviz.methods.stand import trajectories
from specviz.models.hub.cache_dir import no_progress
from specviz.pipeline.prepared import Prepared
from specviz.pipeline.request import Memory, Request, RunMemory
from tests.support.tiny.text import Letters, TinyResources

WARM = Warp(1.0)


@dataclass
class Places:
    """A target whose next token depends on its place and on the last token: ``logits`` [place, token, vocab]."""

    logits: Tensor
    name = "places"
    eos_ids: frozenset[int] = frozenset()
    context_length = 1 << 20
    boundary = 0
    device = torch.device("cpu")
    dtype = torch.float64
    tier = "eager"
    length = 0

    def open(self, capacity, taps=()):
        return replace(self)

    def score(self, tree):
        last = len(self.logits) - 1
        places = [min(last, self.length + depth) for depth in tree.shape.depths]
        return TargetPass(self.logits[places, tree.tokens])

    def keep(self, path):
        self.length += len(path)

    def padded(self, nodes):
        return nodes

    def close(self):
        """There is no cache."""


@dataclass
class Table(NullDrafter):
    """A drafter by a table, which says what it would have drafted as well."""

    distributions: Tensor

    def rows(self, context, tokens, parents, nodes):
        return [Proposal(self.distributions[tokens[node]]) for node in nodes]

    def calls(self):
        return 1

    def hindsight(self, context, emitted, distributions):
        text = [*context.ids, *emitted]

        def shared(start, place):
            assert distributions is not None
            overlap = float(torch.minimum(self.distributions[text[place - 1]], distributions[place - len(context.ids)]).sum())
            return overlap, overlap

        return Hindsight(None, lambda numbers: shared)


LEFT, RIGHT, START = range(3)
EVEN, SURE_RIGHT = [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]
OFTEN_LEFT, OFTEN_RIGHT = [0.9, 0.1, 0.0], [0.1, 0.9, 0.0]


@dataclass(frozen=True)
class Toy:
    """A method with a memory, and what the target says after each token: at the first place, and at all others."""

    method: Method
    first: list[list[float]]
    later: list[list[float]]
    prompt: int = START
    budget: int = 2
    seeds: int = 300

    def target(self):
        distributions = torch.tensor([self.first, self.later], dtype=torch.float64)
        return Places(distributions.log())


def bandit(chooser: Callable[[], Any], *arms: list[list[float]]) -> Method:
    """A choice among drafters by table, remembered as those methods remember it."""

    def compose(parameters, parts):
        tables = [Table(torch.tensor(distributions, dtype=torch.float64)) for distributions in arms]
        made = [Arm(str(number), table, Sampled(chain(1))) for number, table in enumerate(tables)]
        return Composition(DrafterSelector(made, recalled(parts, "toy", "", True, chooser), 1), Rejection())

    return replace(get("not_a_bandit"), compose=compose, parameters=NoParameters)


# Text begins with LEFT or RIGHT and mostly stays there. Which of them it was says which drafter was the better one, and so
# who drafts the first token of the next run.
STAYS = [OFTEN_LEFT, OFTEN_RIGHT, EVEN]
HEDGED = ([OFTEN_RIGHT, OFTEN_RIGHT, OFTEN_LEFT], [OFTEN_LEFT, OFTEN_RIGHT, OFTEN_RIGHT])
TOYS = {
    # The prompt's own token comes seldom, and then again and again: a store that has seen it drafts it first.
    "stand": Toy(get("stand"), [[0.2, 0.8, 0.0], SURE_RIGHT, EVEN], STAYS, LEFT, 4, 400),
    "hedge": Toy(bandit(partial(NormalHedge, 2), *HEDGED), STAYS, STAYS),
}
LANES = [pytest.param(name, marks=() if name == "hedge" else pytest.mark.slow) for name in TOYS]
RUNS = 4


def ready(toy: Toy, seed: int, **values: Any) -> Prepared:
    """A user with a fresh memory who asks for one seed."""
    target, memory, method = toy.target(), Memory(), toy.method
    parts = TinyResources(target, WARM, "prompt", memory, curve=CostCurve((1, 9), (1.0, 2.0)))
    given = {"nodes": 1, **values} if method.name == "stand" else values
    request = Request(method.name, "prompt", max_new_tokens=toy.budget, temperature=1.0, seed=seed, parameters=given)
    loaded = SimpleNamespace(name="places", warnings=())
    return Prepared(
        request=request,
        method=method,
        warp=WARM,
        loaded=loaded,
        target=target,
        text=Letters(),
        prompt_ids=[toy.prompt],
        resources=parts,
        budget=toy.budget,
        run_fields={},
        memory=memory,
        costs=None,
    )


def written(one: Prepared, composition: Composition) -> tuple[int, ...]:
    run = one.decoding(composition, one.request.seed)
    for _ in run.steps():
        pass
    assert run.outcome.reason == "budget", run.outcome.message
    return tuple(run.outcome.output_ids)


def texts(toy: Toy, salted: bool = True) -> list[Counter[tuple[int, ...]]]:
    """What each run of the same seed wrote, over all seeds."""
    found: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(RUNS)]
    for seed in range(toy.seeds):
        one = ready(toy, seed)
        for run in found:
            composition = one.compose()
            run[written(one, composition if salted else replace(composition, generation=0))] += 1
    return found


def deviation(found: Counter[tuple[int, ...]], toy: Toy) -> float:
    """Chi-square of the joint distribution of the first three tokens, as a normal deviate (Wilson and Hilferty)."""
    chi, cells, count = 0.0, 0, sum(found.values())
    length = min(3, toy.budget)
    beginnings: Counter[tuple[int, ...]] = Counter()
    for text, times in found.items():
        beginnings[text[:length]] += times
    for text in itertools.product(range(3), repeat=length):
        pairs = zip((toy.prompt, *text), text, strict=False)
        probability = math.prod((toy.later if place else toy.first)[a][b] for place, (a, b) in enumerate(pairs))
        assert probability or not beginnings[text], "a text that the target never writes"
        if probability * count >= 5:
            chi, cells = chi + (beginnings[text] - count * probability) ** 2 / (count * probability), cells + 1
    free = cells - 1
    return ((chi / free) ** (1 / 3) - 1 + 2 / (9 * free)) / math.sqrt(2 / (9 * free))


@pytest.mark.parametrize("name", LANES)
def test_every_run_of_one_seed_has_the_targets_distribution(name):
    assert max(deviation(found, TOYS[name]) for found in texts(TOYS[name])) < 3.5


@pytest.mark.slow
@pytest.mark.parametrize("name", TOYS)
def test_these_toys_show_it_when_runs_share_their_random_numbers(name):
    assert max(deviation(found, TOYS[name]) for found in texts(TOYS[name], salted=False)) > 5


def test_every_run_that_recalls_the_same_has_the_next_generation():
    memory = Memory()

    def generation(*keys):
        taken = RunMemory(memory)
        for key in keys:
            taken.remember((key,), dict)
        return taken.generation()

    assert generation() == 0
    assert [generation("store") for _ in range(3)] == [0, 1, 2]
    assert [generation("other"), generation("store", "other"), generation("other"), generation("store")] == [0, 3, 4, 4]


def test_an_exp3_run_goes_on_from_the_last_one_with_numbers_of_its_own():
    toy = Toy(bandit(partial(ExponentialWeights, 2), *HEDGED), STAYS, STAYS)
    one = ready(toy, 5)
    made = [one.compose() for _ in range(3)]
    assert [composition.generation for composition in made] == [0, 1, 2]
    assert len({id(composition.controller.chooser) for composition in made}) == 1
    noises = [one.decoding(composition, 5).noise for composition in made]
    assert [noise.generation for noise in noises] == [0, 1, 2]
    assert noises[0] == Noise(5) and one.compose("autoregressive").generation == 0


def matching() -> Toy:
    """STAND with sample-and-match on a text that is worth remembering."""
    return replace(TOYS["stand"], first=STAYS, budget=40)


def test_matching_writes_the_autoregressive_text_whatever_the_memory_has_seen():
    kept = 0
    for seed in range(5):
        one = ready(matching(), seed, rule="match")
        alone = written(one, one.compose("autoregressive"))
        for generation in range(3):
            composition = one.compose()
            assert composition.generation == generation
            run = one.decoding(composition, seed, "tree")
            kept += sum(len(step.path) for step in run.steps())
            assert tuple(run.outcome.output_ids) == alone
    assert kept > 100


@pytest.mark.spread(1)
@pytest.mark.parametrize("rule", ["match", "without_replacement"])
def test_trajectories_that_teach_share_no_numbers_with_any_run(rule, monkeypatch):
    noises: list[tuple[Noise, tuple[int, ...]]] = []
    for seed in (3, 4, 5):
        one = ready(matching(), seed, rule=rule, earlier_trajectories=2)
        plain = one.decoding

        def noted(*asked, plain=plain):
            made = plain(*asked)
            noises.append((made.noise, made.outcome.output_ids))
            return made

        object.__setattr__(one, "decoding", noted)
        for _ in range(2):
            composition = one.compose()
            trajectories.decode(one, Stop(), no_progress)
            written(one, composition)
    assert len(noises) == 18
    # What teaches and what is taught never meet, in whatever order a user asks for seeds; nor does one trajectory another.
    assert len({noise for noise, _ in noises}) == len({noise.uniform(ACCEPT, 0, 1) for noise, _ in noises}) == 18
    ours = {noise.coupled.uniform(TARGET, 1) for noise, _ in noises if not noise.trajectory}
    assert len(ours) == 3
    assert ours.isdisjoint(noise.coupled.uniform(TARGET, 1) for noise, _ in noises if noise.trajectory)
    texts = [tuple(ids) for _, ids in noises[:3]]
    assert len(set(texts)) == 3, "a run must not be taught its own text"


def test_whoever_waits_hears_which_trajectory_is_decoded():
    heard: list[tuple[str, float | None]] = []
    one = ready(matching(), 3, rule="match", earlier_trajectories=2)
    trajectories.decode(one, Stop(), lambda message, fraction: heard.append((message, fraction)))
    shares = [fraction for _, fraction in heard if fraction is not None]
    assert heard[0] == ("Earlier try 1 of 2", 0.0) and ("Earlier try 2 of 2", 0.5) in heard
    assert shares == sorted(shares) and heard[-1][0].startswith(f"Earlier try 2 of 2: {one.budget} of at most {one.budget}")


def test_a_first_run_draws_what_it_always_drew():
    """Recorded runs stay repeatable: these numbers are those of the noise that had no generations."""
    assert Noise(7, 0, 0).uniform(ACCEPT, 3, 1) == 0.8463825539485544
    others = {noise.uniform(ACCEPT, 3, 1) for noise in (Noise(7, 1), Noise(7, 0, 1), Noise(7, 1, 1), Noise(7, 2))}
    assert len(others) == 4 and 0.8463825539485544 not in others
