"""The ladder for rounds whose drafter is chosen by what the text said so far: the choice leaves the distribution as it is."""

from typing import Any

import pytest
import torch

from specviz.acceptance.exact import Rejection
from specviz.drafting.networks.small_lm import SmallRuntime
from specviz.drafting.runtimes.language_model import DraftModel, SessionModel, SmallModel
from specviz.drafting.trees.sampled import Sampled
from specviz.engine.clock import Untimed
from specviz.engine.interfaces import Composition, Proposal
from specviz.engine.sampling import Warp
from specviz.engine.tree import chain
from specviz.errors import BadInput
from specviz.methods.bandits import UpperConfidence
from specviz.methods.hedgespec import NormalHedge
from specviz.methods.hedgespec.selection import Arm, DrafterSelector, JudgedCopy, JudgedModel, expected_length
from specviz.targets.hybrid import HybridTarget
from specviz.targets.text import TextTarget
from tests.support import rounds
from tests.support.tiny.hybrid import hybrid
from tests.support.tiny.networks import arm
from tests.support.tiny.text import LENGTH, composed, decode, parts_for, perturbed, tiny_target
from tests.support.worlds.text import GREEDY, NUCLEUS, PROMPT, WARM, baseline, compose


def compose_named(name: str, values: dict[str, object], target: TextTarget, warp: Warp, memory: Any = None) -> Composition:
    """Over whole models of the target's vocabulary, as a user names them: often right, seldom right, of recurrent layers."""
    near, far = (TextTarget(perturbed(target.model, amount), label, []) for label, amount in (("near", 0.01), ("far", 0.2)))
    named: list[Any] = [near, far, HybridTarget(hybrid(dtype=target.dtype), "recurrent", ())]
    models = {
        model.name: DraftModel(
            model.name, model.context_length, lambda capacity, model=model: SessionModel(model.open(capacity), model)
        )
        for model in named
    }
    parts = parts_for(target, warp, memory=memory).using(draft_models=lambda: models, uses_shipped_weights=False)
    return composed(name, values, parts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["not_a_bandit", "bandit_ucb", "bandit_exp3"])
def test_drafters_that_a_user_names_are_arms_too(name):
    target, memory = tiny_target(), {}
    run = decode(target, compose_named(name, {"gamma": 4}, target, GREEDY, memory), PROMPT, LENGTH, GREEDY, 7)
    assert run.ids == baseline("eager", torch.float64, GREEDY)[:LENGTH]
    told = [step.notes[0].data for step in run.steps]
    assert told[0]["names"] == ["near", "far", "recurrent", "copy"]
    assert len({one["drafted"] for one in told}) > 1 and max(len(step.path) for step in run.steps) == 4
    if name == "not_a_bandit":
        late = [one["drafted"] for one in told[len(told) // 2 :]]
        assert late.count(0) > len(late) / 2, "the one that is right more often"
    shipped = decode(target, compose(name, {"gamma": 4}, target, GREEDY, memory), PROMPT, 20, GREEDY, 7)
    assert len(shipped.steps[0].notes[0].data["names"]) == 5, "what was learned of other arms is not recalled"


@pytest.mark.slow
def test_an_arm_is_asked_for_by_a_name_it_has():
    target = tiny_target()
    with pytest.raises(BadInput, match="no arm maths among the named draft models"):
        compose_named("not_a_bandit", {"arm": "maths"}, target, GREEDY)
    run = decode(target, compose_named("not_a_bandit", {"arm": "copy"}, target, GREEDY), PROMPT, 30, GREEDY)
    assert {step.notes[0].data["drafted"] for step in run.steps} == {3}


def test_a_perfect_arm_is_accepted_whole_and_a_silent_one_not_at_all():
    target, text = tiny_target(), baseline("eager", torch.float64, GREEDY)

    class Told(JudgedModel):
        levels = None

        def rows(self, context, tokens, parents, nodes):
            place = len(context.ids) - context.prompt_length + nodes[0]
            distribution = torch.zeros(target.vocab_size, dtype=torch.float64)
            distribution[text[place]] = 1.0
            return [Proposal(distribution)]

    network = arm(target, 0)
    told = Arm("told", Told(lambda capacity: SmallModel(network, capacity), 1024), Sampled(chain(4)))
    made = Composition(DrafterSelector([told], NormalHedge(1), 4), Rejection())
    run = decode(target, made, PROMPT, 100, GREEDY)
    assert [len(step.path) for step in run.steps] == [4] * 20 and run.ids == text[:100]

    class Mute(Told):
        def rows(self, *given):
            return [None]

    mute = Arm("mute", Mute(lambda capacity: SmallModel(network, capacity), 1024), Sampled(chain(4)))
    silent = decode(target, Composition(DrafterSelector([mute], UpperConfidence(1), 4), Rejection()), PROMPT, 20, GREEDY)
    assert silent.ids == text[:20] and not any(step.path for step in silent.steps)


@pytest.mark.spread(1)
@pytest.mark.parametrize("warp", [GREEDY, WARM, NUCLEUS])
@pytest.mark.parametrize(("composing", "count"), [(compose, 4), (compose_named, 3)])
def test_hindsight_of_the_arm_that_drafted_is_what_it_drafted_with(composing, count, warp):
    """Distributions asked afterwards, in one forward along the text, are those its chain was drawn from, token by token."""
    target = tiny_target()
    seen: list[tuple[float, float]] = []

    class Watched(DrafterSelector):
        def draft(self, context):
            self.drafted = super().draft(context)
            return self.drafted

        def _complete_note(self, finished, judged, settled):
            super()._complete_note(finished, judged, settled)
            if not self.drafted.proposals:
                return
            distributions, first = self._distributions(finished), len(finished.context.ids)
            for depth in range(min(len(self.drafted.tree) - 1, len(finished.verdict.path) + 1, len(finished.emitted))):
                distribution = self.drafted.proposals[depth]
                p = distributions[depth]
                p = p if distribution.ids is None else p[distribution.ids]
                shared = float(torch.minimum(p, distribution.probability).sum())
                seen.append((shared, judged[self._playing](first, first + depth)[0]))

    made = composing("not_a_bandit", {"gamma": 4}, target, warp)
    chosen = made.controller
    made = Composition(Watched(chosen.arms[:count], NormalHedge(count), 4), made.acceptance)
    decode(target, made, PROMPT, 60, warp, 3)
    if not warp.greedy:
        assert len(seen) > 20 and all(one == pytest.approx(two, abs=1e-9) for one, two in seen)


@pytest.mark.slow
def test_hindsight_at_temperature_zero_counts_the_matching_tokens():
    target = tiny_target()
    run = decode(target, compose("not_a_bandit", {"gamma": 4}, target, GREEDY), PROMPT, 120, GREEDY)
    for step in run.steps[:-1]:
        told = step.notes[0].data
        ghost = told["ghosts"][told["drafted"]]
        assert sum(ghost[: len(step.path)]) == len(step.path)
        if len(step.path) < min(4, len(step.nodes) - 1):
            assert ghost[len(step.path)] == 0.0
            assert told["expected"][told["drafted"]] == pytest.approx(len(step.path) + 1)
        assert all(set(row) <= {0.0, 1.0} for row in told["ghosts"])


def test_copying_in_hindsight_is_what_copying_would_have_done():
    """Starts inside a round are judged by what was known there, not by what came later."""
    text = [1, 2, 3, 9, 1, 2, 3, 9, 1, 2, 4, 9]
    drafter, found = JudgedCopy(2, 1, 3), {}
    here = rounds.context(text[:4])
    drafter.begin(here, None)
    judged = drafter.hindsight(here, text[4:], None).judged([])
    for start in range(4, 12):
        found[start] = [judged(start, place)[1] for place in range(start, min(12, start + 3))]
    assert found[4] == [0.0, 0.0, 0.0], "9 had not been seen before"
    assert found[5] == [1.0, 1.0, 1.0] and found[8] == [1.0, 1.0, 0.0]
    assert expected_length([(one, one) for one in found[8]]) == 3.0


@pytest.mark.slow
def test_what_was_learned_stays_with_the_user_who_taught_it():
    target, memory = tiny_target(), {}
    first = decode(target, compose("not_a_bandit", {}, target, GREEDY, memory), PROMPT, 60, GREEDY)
    again = decode(target, compose("not_a_bandit", {}, target, GREEDY, memory), PROMPT, 60, GREEDY)
    fresh = decode(target, compose("not_a_bandit", {}, target, GREEDY, {}), PROMPT, 60, GREEDY)
    assert again.steps[0].notes[0].data["chances"] == first.steps[-1].notes[0].data["after"] != [0.2] * 5
    assert fresh.steps[0].notes[0].data["chances"] == [0.2] * 5
    assert first.ids == again.ids == fresh.ids


def test_a_bandit_hears_of_the_arm_that_drafted_alone():
    target = tiny_target()
    made = compose("bandit_ucb", {"remember": False}, target, GREEDY)
    run = decode(target, made, PROMPT, 40, GREEDY, level="off")
    chooser = made.controller.chooser
    assert sum(chooser.rounds) == pytest.approx(len(run.steps))
    assert not made.controller.queue.waiting, "nobody is judged in hindsight where nobody asks"


@pytest.mark.parametrize("name", ["bandit_ucb", "bandit_exp3", "not_a_bandit"])
def test_arms_read_as_much_on_the_clock_whatever_is_recorded(name, monkeypatch):
    target, read, off_clock = tiny_target(), [0], []
    outputs, enter, leave = SmallRuntime.outputs, Untimed.__enter__, Untimed.__exit__

    def counted(runtime, rows, cache):
        read[-1] += 0 if off_clock else len(rows.pairs)
        return outputs(runtime, rows, cache)

    monkeypatch.setattr(SmallRuntime, "outputs", counted)
    monkeypatch.setattr(Untimed, "__enter__", lambda one: off_clock.append(one) or enter(one))
    monkeypatch.setattr(Untimed, "__exit__", lambda one, *problem: off_clock.pop() and leave(one, *problem))
    for level in ("off", "tree"):
        read.append(0)
        decode(target, compose(name, {"gamma": 4}, target, GREEDY, {}), PROMPT, 60, GREEDY, 7, level)
    assert read[1] == read[2] > 60
