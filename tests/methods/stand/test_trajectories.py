"""Trajectories that teach a drafter before a run: decoded in one batch where rows can share a cache, else one by one."""

import pytest

from specviz.engine.batch_loop import BatchDecoding
from specviz.engine.stop import Stop
from specviz.methods.stand import trajectories
from specviz.paths import SCENES
from specviz.pipeline.request import Memory, Request
from specviz.pipeline.runner import prepare

PROMPT = "Count: 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3,"


def ready(**parameters):
    """STAND on the model that ships, as exact as it gets."""
    asked = Request("stand", PROMPT, max_new_tokens=5, temperature=0.9, dtype="float64", parameters={"nodes": 4, **parameters})
    return prepare(asked, Memory())


def texts(one, monkeypatch, **more):
    """What the trajectories wrote, what the one who waits heard, and the warning."""
    outcomes, heard = [], []
    plain = one.decoding

    def noted(*asked):
        run = plain(*asked)
        outcomes.append(run.outcome)
        return run

    object.__setattr__(one, "decoding", noted)
    warning = trajectories.decode(one, more.get("cancel", Stop()), lambda message, share: heard.append(message))
    return [tuple(outcome.output_ids) for outcome in outcomes], heard, warning


@pytest.mark.model
def test_rows_write_what_they_would_write_alone_and_one_more_than_a_batch_holds_is_alone(monkeypatch):
    monkeypatch.setattr(trajectories, "MOST_ROWS", 2)
    together, heard, warning = texts(ready(rule="match", earlier_trajectories=3), monkeypatch)
    assert heard[0] == "Earlier tries 1 to 2 of 3" and any(one.endswith("of at most 5 tokens each") for one in heard)
    assert "Earlier try 3 of 3" in heard and not warning
    monkeypatch.setattr(trajectories, "LONGEST_PROMPT", 0)
    alone, heard, _ = texts(ready(rule="match", earlier_trajectories=3), monkeypatch)
    assert heard[-1] == "Earlier try 3 of 3: 5 of at most 5 tokens"
    assert together == alone and len(set(alone)) == 3


@pytest.mark.model
@pytest.mark.parametrize(("room", "spread", "together"), [(0, (), True), (-1, (), False), (0, ("cpu", "cpu:0"), False)])
def test_a_target_whose_rows_cannot_share_a_pass_decodes_them_one_by_one(room, spread, together, monkeypatch):
    one = ready(earlier_trajectories=2)
    monkeypatch.setitem(vars(one.target), "boundary", len(one.prompt_ids) + 5 + room)
    monkeypatch.setitem(vars(one.target), "spread", spread)
    found, heard, warning = texts(one, monkeypatch)
    assert [len(text) for text in found] == [5, 5] and not warning
    begun = [line for line in heard if ":" not in line]
    assert begun == (["Earlier tries 1 to 2 of 2"] if together else ["Earlier try 1 of 2", "Earlier try 2 of 2"])


@pytest.mark.model
def test_a_batch_too_takes_half_of_the_time_at_most(monkeypatch):
    moments = iter(range(10**6))
    stop = Stop(lambda: (30.0, "A run has 30 s here."), lambda: float(next(moments)))
    stop.begin()
    found, _, warning = texts(ready(earlier_trajectories=4), monkeypatch, cancel=stop)
    assert warning == "0 of 4 earlier trajectories were completed within half the time limit."
    assert 0 < len(found[0]) < 5


@pytest.mark.model
def test_one_that_failed_is_not_counted(monkeypatch):
    def broken(self, untimed):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(BatchDecoding, "_play", broken)
    assert texts(ready(earlier_trajectories=2), monkeypatch)[2].startswith("0 of 2 earlier trajectories were completed")


def test_beside_a_picture_each_one_reads_it(monkeypatch):
    asked = {
        "max_new_tokens": 4,
        "temperature": 0.9,
        "image": str(SCENES / "diamond.png"),
        "parameters": {"earlier_trajectories": 2},
    }
    one = prepare(Request("stand", "Describe the picture.", "scenes-vlm", **asked), Memory())
    _, heard, warning = texts(one, monkeypatch)
    assert [line for line in heard if ":" not in line] == ["Earlier try 1 of 2", "Earlier try 2 of 2"] and not warning
