"""A step that is made one round late, as on CUDA, is the step that is made at once, also where the next round fails."""

import pytest

from specviz.engine.loop import Decoding, Recorder
from specviz.engine.sampling import Noise
from tests.support.tiny.text import Letters, tiny_target
from tests.support.worlds.text import GREEDY, PROMPT, compose


def decoding(budget=40):
    target = tiny_target()
    composition = compose("prompt_lookup", {}, target, GREEDY)
    return Decoding(target, composition, PROMPT, GREEDY, Noise(0), budget, Recorder(Letters()))


@pytest.fixture
def late(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "deferred", property(lambda recorder: True, lambda recorder, deferred: None))
        yield


def told(run):
    return [(step.index, step.nodes, step.path, step.emitted, step.bonus, step.cut, step.notes) for step in run.steps()]


def test_steps_made_late_are_the_steps_made_at_once(request):
    at_once = decoding()
    wanted = told(at_once)
    request.getfixturevalue("late")
    run = decoding()
    assert told(run) == wanted and len(wanted) > 5
    assert run.outcome.output_ids == at_once.outcome.output_ids and run.outcome.reason == "budget"


@pytest.mark.parametrize("phase", ["draft", "judge"])
def test_a_fault_in_the_next_round_keeps_the_step_that_waits(phase, late):
    run, rounds = decoding(), 4
    part = run.composition.controller if phase == "draft" else run.composition.acceptance
    plain = getattr(part, phase)

    def failing(*given):
        if run.round == rounds:
            raise RuntimeError("no more")
        return plain(*given)

    object.__setattr__(part, phase, failing)
    steps = list(run.steps())
    assert [step.index for step in steps] == list(range(rounds))
    assert run.outcome.output_ids == [token for step in steps for token in step.emitted]
    assert (run.outcome.reason, run.outcome.message) == ("error", "RuntimeError: no more")
