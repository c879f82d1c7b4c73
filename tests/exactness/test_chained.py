"""A chain of three models writes what the target alone would: token for token where it is greedy, else by its law."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from specviz.acceptance.match import Match
from specviz.acceptance.rejection import Rejection
from specviz.drafters.feature_stepper import FeatureStepper
from specviz.drafters.lean_session import LeanSession
from specviz.drafters.middle import FittedSession, Middle, SmallSession
from specviz.drafters.small_lm import SmallConfig, SmallLM
from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import Composition, Context, Draft, Pick, Proposal, Round, TargetPass
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import DraftTree, chain
from specviz.growth.chained import Chained
from specviz.growth.sampled import Sampled
from specviz.methods.parameters import build
from specviz.methods.registry import get
from specviz.models.lean import lean_copy
from specviz.models.low_bits import eight_bits
from specviz.targets.text import TextTarget
from tests.exactness.test_drawn_trees import spoken
from tests.exactness.test_text_methods import GREEDY, PROMPT, WARPS, _Audit
from tests.exactness.worlds import PLAIN, World, drawn, exact_law
from tests.feature_worlds import tiny_net
from tests.tiny import Decoded, decode, parts_for, perturbed, tiny_target

CURVE = CostCurve((1, 40), (2.0, 3.0))
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a plain copy": ("plain_copy", {"gathered": 6, "nodes": 5}),
    "in 8 bits": ("int8", {"gathered": 8, "depth": 3, "nodes": 6}),
    "another model": ("draft", {"gathered": 4, "drafter": "eagle3", "depth": 3, "nodes": 4}),
    "copied text below": ("draft", {"gathered": 5, "drafter": "copy"}),
    "the small model": ("small_draft", {"gathered": 3, "depth": 2}),
}


def small(target: TextTarget, support: int = 30) -> SmallLM:
    """A tiny random small draft model on this target's embedding."""
    torch.manual_seed(5)
    embedding = target.model.get_input_embeddings().weight.detach()
    config = SmallConfig(*embedding.shape, draft_vocab=support, width=16, layers=4, heads=2, inner=32, window=64)
    made = SmallLM(config, embedding, torch.arange(support)).to(embedding.dtype)
    for weight in made.parameters():
        weight.data.normal_(std=0.3)
    return made.eval().requires_grad_(False)


def middle_of(kind: str, target: TextTarget) -> Middle:
    """A model for the middle of a tiny chain."""
    if kind == "draft":
        other = TextTarget(perturbed(target.model, 0.02), "other", (), target.tier)
        start: Any = lambda capacity, taps: FittedSession(other.open(capacity), other.vocab_size, target.vocab_size)  # noqa: E731
    elif kind == "small_draft":
        model = small(target)
        start = lambda capacity, taps: SmallSession(model, capacity)  # noqa: E731
    else:
        layouts = (eight_bits, eight_bits) if kind == "int8" else None
        decoder = lean_copy(target, layouts) if layouts else lean_copy(target)
        start = lambda capacity, taps: LeanSession(decoder, capacity, taps)  # noqa: E731
    states = kind in ("plain_copy", "int8")
    made = Middle(kind, kind, target.context_length, target.device, start, lambda: CURVE, states, kind != "small_draft")
    return made


def compose(case: str, target: TextTarget, warp: Warp) -> Composition:
    kind, values = CASES[case]
    network = FeatureStepper(tiny_net(target.model, True, 40))
    parts = replace(parts_for(target, warp), heads=lambda name: network, middle=lambda name: middle_of(name, target))
    method = get("polybasic")
    return method.compose(build(method.parameters, {"middle": kind, **values}, "polybasic"), parts)


@cache
def one_by_one(tier: str, budget: int = 220, context: int = 1024) -> Decoded:
    target = tiny_target(tier, context=context)
    plain = get("autoregressive")
    return decode(target, plain.compose(plain.parameters(), parts_for(target, GREEDY)), PROMPT, budget, GREEDY)


@pytest.mark.parametrize(("case", "tier"), [(case, "eager") for case in CASES] + [("a plain copy", "graph")])
def test_greedy_runs_equal_one_by_one(case: str, tier: str) -> None:
    target = tiny_target(tier)
    run = decode(target, compose(case, target, GREEDY), PROMPT, 220, GREEDY)
    assert run.ids == one_by_one(tier).ids
    if case != "the small model":
        assert sum(len(step.path) for step in run.steps) > 110, "the middle model is nearly the target"
    passes = [one for step in run.steps for note in step.notes for one in note.data["passes"]]
    if CASES[case][1].get("drafter") == "copy" or case == "a plain copy":
        assert any(one["kept"] for one in passes), "the drafter below was never right, so its filtering was not tested"


def test_a_copy_of_the_target_is_kept_whole() -> None:
    target = tiny_target()
    for warp in (GREEDY, WARPS["warm"]):
        run = decode(target, compose("a plain copy", target, warp), PROMPT, 120, warp, 3)
        assert all(len(step.path) == len(step.nodes) - 1 for step in run.steps[:-1])
        assert all(len(step.path) >= 6 for step in run.steps[:-1]), "the buffer fills before the target looks"


@pytest.mark.parametrize("budget", [1, 7, 13])
def test_the_budget_may_end_inside_a_buffer(budget: int) -> None:
    target = tiny_target()
    run = decode(target, compose("a plain copy", target, GREEDY), PROMPT, budget, GREEDY)
    assert (run.ids, run.outcome.reason) == (one_by_one("eager").ids[:budget], "budget")


def test_end_of_sequence_inside_a_buffer_ends_the_run_and_the_gathering() -> None:
    greedy = one_by_one("eager").ids[:40]
    ending = next(token for place, token in enumerate(greedy) if place > 9 and token not in greedy[:place])
    target = tiny_target(eos=[ending])
    run = decode(target, compose("a plain copy", target, GREEDY), PROMPT, 40, GREEDY)
    assert run.ids == greedy[: greedy.index(ending) + 1]
    assert run.outcome.reason == "eos"
    assert ending in [node.token for node in run.steps[-1].nodes[-3:]], "nothing is gathered behind the end"


@pytest.mark.parametrize("case", CASES)
def test_a_full_context_ends_the_run_with_the_same_text(case: str) -> None:
    target = tiny_target(context=64)
    run = decode(target, compose(case, target, GREEDY), PROMPT, 500, GREEDY)
    assert run.outcome.reason == "context"
    assert run.ids == one_by_one("eager", 500, 64).ids


@pytest.mark.parametrize("prompt", [[5], [5, 6]])
@pytest.mark.parametrize("case", CASES)
def test_shortest_prompts(case: str, prompt: list[int]) -> None:
    target, plain = tiny_target(), get("autoregressive")
    alone = decode(target, plain.compose(plain.parameters(), parts_for(target, GREEDY)), prompt, 30, GREEDY)
    assert decode(target, compose(case, target, GREEDY), prompt, 30, GREEDY).ids == alone.ids


@pytest.mark.parametrize(("case", "warped"), [(case, "warm") for case in CASES] + [("in 8 bits", "greedy")])
def test_all_caches_equal_fresh_ones_after_every_step(case: str, warped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's by the usual audit; the middle model's by what it says at the start of each round."""
    target, warp = tiny_target(), WARPS[warped]
    composition = compose(case, target, warp)
    audit = _Audit(target)
    monkeypatch.setattr(target, "open", audit.open)
    worst = _audited(composition.controller)
    run = decode(target, composition, PROMPT, 60, warp)
    assert audit.checked == len(run.steps) and audit.worst < 1e-9
    assert len(worst) >= len(run.steps) - 1 and max(worst) < 1e-5


def _audited(controller: Any) -> list[float]:
    """Compare the middle model's rows with those of a session that reads the whole text at once."""
    worst, score = [], controller._score

    def checked(inner: Context, tree: DraftTree) -> tuple[TargetPass, int]:
        found, lead = score(inner, tree)
        fresh = controller.middle.open(len(inner.ids) + 64, ())
        if len(inner.ids) > 1:
            fresh.prefill(inner.ids[:-1])
        wanted = fresh.score(tree).logits
        seen = torch.isfinite(wanted)
        worst.append(float((found.logits[seen] - wanted[seen]).abs().max()))
        return found, lead

    controller._score = checked
    return worst


class Table:
    """A world's drafter as a model for the middle, by prefix; it keeps no state but the text."""

    name, context_length = "table", 1 << 20

    def __init__(self, world: World, prompt: int) -> None:
        self.world, self.prompt = world, prompt
        self.text: list[int] = []
        self.tree: DraftTree | None = None

    @property
    def length(self) -> int:
        return len(self.text)

    def open(self, capacity: int, taps: tuple[int, ...] = ()) -> Table:
        self.text = []
        return self

    def prefill(self, ids: list[int]) -> None:
        self.text += ids

    def score(self, tree: DraftTree) -> TargetPass:
        self.tree = tree
        rows = []
        for node in range(len(tree)):
            prefix = [*self.text, *(tree.host_tokens[one] for one in tree.shape.path(node))][self.prompt :]
            table = self.world.drafter[min(len(prefix), 2)]
            rows.append(table[tuple(prefix[:2])])
        return TargetPass(torch.stack(rows))

    def keep(self, path: list[int]) -> None:
        assert self.tree is not None
        self.text += [self.tree.host_tokens[node] for node in path]

    def rewind(self, length: int) -> None:
        del self.text[length:]

    def close(self) -> None:
        pass


class Guess:
    """A drafter with one law everywhere, unlike any other's."""

    def __init__(self, vocab: int) -> None:
        self.law = torch.softmax(torch.arange(vocab, dtype=torch.float64), -1)

    def begin(self, context: Context, prefill: TargetPass | None) -> None: ...

    def observe(self, finished: Round) -> None: ...

    def bookmark(self) -> None: ...

    def back(self, bookmark: None) -> None: ...

    def close(self) -> None: ...

    def rows(self, context: Context, tokens: Any, parents: Any, nodes: Any) -> list[Proposal]:
        return [Proposal(self.law) for _ in nodes]

    def calls(self) -> int:
        return 1

    def story(self, picks: list[Pick]) -> tuple[()]:
        return ()


def gathered(world: World, judge: Any, rounds: int) -> list[Draft]:
    """What the middle of the chain hands to the target, in many rounds with noise of their own."""
    found = []
    controller = Chained(Table(world, 1), Guess(world.vocab), Sampled(chain(1)), judge, 2)
    for number in range(rounds):
        context = Context([0], 1, 0, world.warp, Noise(number), torch.device("cpu"), 20, story=False)
        controller.begin(context, None)
        found.append(controller.draft(context))
    return found


@pytest.mark.parametrize("judge", [Match(), Rejection()], ids=["match", "ratio"])
def test_what_gathers_has_the_middle_models_law_and_carries_it(judge: Any) -> None:
    world, rounds = World(vocab=3, seed=2), 1500
    drafts = gathered(world, judge, rounds)
    counts = Counter(tuple(draft.tree.host_tokens[1:3]) for draft in drafts)
    first = world.proposal(()).probability
    statistic = 0.0
    for one in range(3):
        second = world.proposal((one,)).probability
        for two in range(3):
            expected = rounds * float(first[one] * second[two])
            statistic += (counts[one, two] - expected) ** 2 / expected
    assert statistic < 42.0, "8 degrees of freedom, one in a million"
    for draft in drafts[:50]:
        tokens = draft.tree.host_tokens
        assert torch.allclose(draft.proposals[0].probability, first)
        assert torch.allclose(draft.proposals[1].probability, world.proposal((tokens[1],)).probability)


def test_judging_by_the_middle_models_law_keeps_the_targets_law(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(vocab=3, seed=2)
    law = exact_law(world, drawn(world, chain(2)), Rejection(), monkeypatch)
    torch.testing.assert_close(law, world.law(), rtol=0, atol=1e-12)


def test_judging_by_the_drafters_law_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(vocab=3, seed=2)
    below = Proposal(Guess(3).law)
    drafts = [
        (chance, replace(draft, proposals=dict.fromkeys(draft.proposals, below)))
        for chance, draft in drawn(world, chain(2))
    ]
    law = exact_law(world, iter(drafts), Rejection(), monkeypatch)
    assert float((law - world.law()).abs().max()) > 0.05


@pytest.mark.parametrize("kind", ["draft", "int8"])
def test_whole_runs_keep_the_law(kind: str) -> None:
    """Through the loop, three models and their noise: Pearson's statistic over the 27 texts of three tokens."""
    target, runs = tiny_target(vocab=3), 200
    prompt = [1, 2, 0, 1]
    laws = [PLAIN.probabilities(table) for table in spoken(target)]
    expected = runs * laws[0][:, None, None] * laws[1][:, :, None] * laws[2]
    middle, counts = middle_of(kind, target), torch.zeros_like(expected)
    for seed in range(runs):
        controller = Chained(middle, Guess(3), Sampled(chain(1)), Match(), 2)
        first, second, third = decode(target, Composition(controller, Rejection()), prompt, 3, PLAIN, seed, "off").ids
        counts[first, second, third] += 1
    assert float(((counts - expected) ** 2 / expected).sum()) < 76.0  # 26 degrees of freedom, one in a million
