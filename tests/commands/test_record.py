"""``record``: the file beside a recorded run says what to run, the median is kept, and nothing outside its folder is written."""

import json
import platform
import sys
import types

import pytest
from msgspec.structs import replace

from specviz.__main__ import main
from specviz.trace import store
from specviz.trace.schema import Nanoseconds
from specviz.ui.archive import REAL, Gallery
from tests.support.traces.samples import sample_trace

FILE = f"sky{store.SUFFIX}.gz"
ENTRY = {"title": "Sky", "request": {"method": "stand", "prompt": "Why?"}}


class FakeEngine:
    """Answers every call with a sample whose speed-up is the next of ``speeds``; remembers what it was asked."""

    def __init__(self, *speeds):
        self.speeds = iter(speeds)
        self.asked = []
        self.memories = []

    def run(self, *, memory, progress, **fields):
        self.asked.append(fields)
        self.memories.append(memory)
        trace = sample_trace(4, baseline=bool(fields.get("baseline")), reason="budget")
        if not fields.get("baseline"):
            return trace
        return replace(trace, end=replace(trace.end, metrics={**trace.end.metrics, "speedup": next(self.speeds)}))


@pytest.fixture
def index(tmp_path):
    (tmp_path / "sky.json").write_text(json.dumps(ENTRY), encoding="utf-8")
    (tmp_path / "given.json").write_text(json.dumps({"title": "Given"}), encoding="utf-8")
    return tmp_path


def with_text(trace, text):
    """The trace with this text in its first step, and none in the others."""
    pieces = [(text if not step.index else "", *[""] * (len(step.pieces) - 1)) for step in trace.steps]
    return replace(trace, steps=tuple(replace(step, pieces=own) for step, own in zip(trace.steps, pieces, strict=True)))


def record(monkeypatch, engine, *given):
    monkeypatch.setitem(sys.modules, "specviz.pipeline.runner", types.SimpleNamespace(run=engine.run))
    return main(["record", *given])


def test_the_median_of_several_runs_is_kept(monkeypatch, index):
    engine = FakeEngine(1.9, 0.4, 1.2)
    assert record(monkeypatch, engine, "--folder", str(index)) == 0
    kept = store.read(index / FILE)
    assert kept.end.metrics["speedup"] == 1.2
    assert engine.asked == [{"baseline": True, "method": "stand", "prompt": "Why?"}] * 3
    assert len({id(memory) for memory in engine.memories}) == 3, "one run's memory reached the next"
    assert not (index / f"given{store.SUFFIX}.gz").exists()


def test_rehearsals_fill_the_memory_of_the_run_that_is_kept(monkeypatch, index):
    (index / "sky.json").write_text(json.dumps({**ENTRY, "rehearsals": 2}), encoding="utf-8")
    engine = FakeEngine(1.0)
    assert record(monkeypatch, engine, "sky", "--folder", str(index), "--times", "1") == 0
    assert [one.get("baseline", False) for one in engine.asked] == [False, False, True]
    assert len({id(memory) for memory in engine.memories}) == 1


def test_a_row_of_a_batch_is_decoded_in_step_with_the_prompts_beside_it(monkeypatch, capsys, index):
    batch = {**ENTRY, "request": {**ENTRY["request"], "seed": 5}, "beside": ["When?", "Where?"], "every": 3}
    (index / "sky.json").write_text(json.dumps(batch), encoding="utf-8")
    asked = []
    slow = iter((9, 1, 4))

    def prepare(request, memory, progress):
        asked.append((request.prompt, request.seed, request.baseline))
        return request

    def traces(ready, every):
        asked.append(every)
        row, times = sample_trace(4, reason="budget", baseline=False), next(slow)
        own = replace(row, steps=tuple(replace(step, time=Nanoseconds(verify=times)) for step in row.steps))
        return [own, *(sample_trace(9) for _ in ready[1:])]

    monkeypatch.setitem(sys.modules, "specviz.pipeline.runner", types.SimpleNamespace(prepare=prepare, run=None))
    monkeypatch.setitem(sys.modules, "specviz.pipeline.batch", types.SimpleNamespace(traces=traces))
    assert main(["record", "sky", "--folder", str(index)]) == 0
    assert asked == [("Why?", 5, False), ("When?", 6, False), ("Where?", 7, False), 3] * 3
    kept = store.read(index / FILE)
    assert len(kept.steps) == 4 and {step.time.verify for step in kept.steps} == {4}, "its own row, the median time"
    assert "in a batch" in capsys.readouterr().out


def test_a_run_is_kept_only_if_its_program_passes_the_check(monkeypatch, capsys, index):
    card = index / "sky.json"
    (index / "given.json").unlink()
    for check, status in (("assert False, 'wrong'", 2), ("assert True", 0)):
        card.write_text(json.dumps({**ENTRY, "check": check}), encoding="utf-8")
        run = FakeEngine(1.0).run
        traced = lambda run=run, **asked: with_text(run(**asked), "x = 1")  # noqa: E731
        monkeypatch.setitem(sys.modules, "specviz.pipeline.runner", types.SimpleNamespace(run=traced))
        assert main(["record", "sky", "--folder", str(index), "--times", "1"]) == status
        assert (index / FILE).exists() == (status == 0)
        assert ("wrong" in capsys.readouterr().err) == (status == 2)
    assert Gallery(index).get("sky").ran == f"Python {platform.python_version()}"
    assert list(Gallery(index).by_family()) == [REAL]


@pytest.mark.parametrize(
    ("entry", "given", "said"),
    [
        (ENTRY, ["sea"], "; the runs are: sky"),
        ({**ENTRY, "request": {**ENTRY["request"], "spell": 1}}, [], "unknown request fields: spell"),
        ({**ENTRY, "beside": "When?", "every": 4}, [], "Expected `array`, got `str`"),
        (ENTRY, ["--times", "0"], "0 is not a whole number from 1 to 99"),
        (7, [], "is not a valid description of a run"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(monkeypatch, capsys, index, entry, given, said):
    (index / "sky.json").write_text(json.dumps(entry), encoding="utf-8")
    engine = FakeEngine()
    assert record(monkeypatch, engine, "--folder", str(index), *given) == 2
    assert said in capsys.readouterr().err and engine.asked == []
