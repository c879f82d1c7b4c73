"""What passes cost here: a few are timed at first, runs teach the rest, and one small file keeps it between starts."""

import json
import threading
from types import SimpleNamespace

import pytest
import torch

from specviz.engine import cost
from specviz.engine.cost import ROUNDS, TIMED, PassTimes
from specviz.models import cost_curves
from specviz.models.cost_curves import MOST, ModelCosts, target_costs
from specviz.models.device import processor
from specviz.models.pass_times import FILE, VERSION, measured
from tests.support.tiny.text import tiny_target

COUNT = len(TIMED) * (1 + ROUNDS)


class Machine:
    """A machine on which a pass takes ten milliseconds and one a row. ``passes`` are the widths of all that were timed, ``told``
    what was reported of them."""

    def __init__(self, patch):
        self.passes, self.told, self.patch = [], [], patch
        patch.setattr(cost, "_pass", lambda target, session, width, chains: self.passes.append(width) or 10.0 + width)
        self.restart()

    def restart(self):
        """Forget what this process knows, as a new start of the app does."""
        self.patch.setattr(cost_curves, "_KNOWN", {})
        self.patch.setattr(cost_curves, "_TIMED", {})

    def report(self, message, share):
        self.told.append((message, share))

    def costs(self, **changes):
        """The costs of a target with these facts."""
        return target_costs(target(**changes), self.report)


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def target(**changes):
    facts = {"name": "tiny", "device": torch.device("cpu"), "dtype": torch.float32, "tier": "eager", "vocab_size": 64}
    plain = tiny_target(context=512)
    return SimpleNamespace(**{**facts, "open": plain.open, "context_length": 512, **changes})


def ratio(costs, rows):
    curve = costs.curve()
    return curve.at(rows) / curve.at(1)


def test_a_few_passes_are_timed_before_the_first_run_and_none_at_the_next_start(machine):
    first = machine.costs()
    assert ratio(first, 16) == pytest.approx(26 / 11, rel=0.05) and ratio(first, 48) == pytest.approx(58 / 11, rel=0.05)
    assert len(machine.passes) == len(machine.told) == COUNT
    assert {message for message, _ in machine.told} == {"Timing the model on this machine"}
    assert [share for _, share in machine.told] == [number / COUNT for number in range(COUNT)]
    machine.restart()
    again = machine.costs()
    assert ratio(again, 48) == pytest.approx(ratio(first, 48), rel=0.01) and len(machine.passes) == COUNT


@pytest.mark.parametrize(
    "changes", [{"name": "other"}, {"dtype": torch.bfloat16}, {"tier": "graph"}, {"rows": 2}, {"vocab_size": 65}]
)
def test_another_model_has_costs_of_its_own(changes, machine):
    """A guided picture, of two rows, reads every code twice: the curve of one row would foretell it twice as fast as it is."""
    machine.costs().curve()
    machine.restart()
    machine.costs(**changes).curve()
    assert len(machine.passes) == 2 * COUNT


def test_threads_or_versions_of_another_start_are_timed_anew(machine, monkeypatch):
    machine.costs().curve()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    machine.costs().curve()
    monkeypatch.setitem(cost_curves._VERSIONS, "transformers", "99.0")
    machine.costs().curve()
    assert len(machine.passes) == 3 * COUNT


def test_threads_taken_away_in_a_run_are_learned_apart_and_nothing_is_timed_in_it(machine, monkeypatch):
    costs = machine.costs()
    before = costs.curve()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    for _ in range(60):
        costs.times().learn(16, 200.0)
        costs.times().learn(1, 20.0)
    assert len(machine.passes) == COUNT and ratio(costs, 16) == pytest.approx(10.0, rel=0.1)
    monkeypatch.undo()
    assert costs.curve() == before


def test_costs_from_a_busy_machine_are_timed_again_as_soon_as_a_run_begins(machine, monkeypatch):
    share = [1.0]
    monkeypatch.setattr(cost_curves, "contention", lambda: share[0])
    costs = machine.costs()
    costs.curve()
    assert len(machine.passes) == COUNT
    costs.run("eagle2").curve()
    assert len(machine.passes) == COUNT, "not at once"
    monkeypatch.setattr(cost_curves, "AGAIN", 0.0)
    share[0] = 0.0
    costs.run("eagle2").curve()
    assert len(machine.passes) == 2 * COUNT


def test_the_first_run_after_a_start_waits_for_no_timing_where_a_file_has_uncertain_times(machine, monkeypatch):
    monkeypatch.setattr(cost_curves, "contention", lambda: 1.0)
    machine.costs().curve()
    machine.restart()
    costs = machine.costs()
    assert costs.run("eagle2").curve() and len(machine.passes) == COUNT, "the file's times size the first trees"
    monkeypatch.setattr(cost_curves, "AGAIN", 0.0)
    assert costs.run("eagle2").curve() and len(machine.passes) == 2 * COUNT, "a later run times passes again"


def test_a_run_that_sizes_nothing_teaches_costs_and_times_none(machine):
    costs = machine.costs().run("prompt_lookup")
    costs.learn(SimpleNamespace(passes=1, padded=8, draft_calls=0, time=SimpleNamespace(verify=18e6, draft=0)))
    assert machine.passes == []
    assert costs.curve().at(8) > costs.curve().at(1) and len(machine.passes) == COUNT


def test_what_runs_teach_outlives_the_process(machine):
    costs = machine.costs()
    run = costs.run("eagle2")
    forward = run.forward(6, lambda: 1.0)
    assert forward == pytest.approx(1.0, rel=0.1), "what was timed"
    for _ in range(80):
        costs.times().learn(16, 88.0)
        costs.times().learn(1, 11.0)
        costs.times().learn_forward("eagle2 6", 3.3)
    costs.keep()
    machine.restart()
    later = machine.costs()
    assert ratio(later, 16) == pytest.approx(8.0, rel=0.1)
    assert later.run("eagle2").forward(6) == pytest.approx(0.3 * later.curve().at(1), rel=0.1)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"version": 0, "models": {}}', '{"version": 1}', '{"version": 1, "models": []}', "KEY: 3", 'KEY: {"logs": []}',
     'KEY: {"logs": [NaN, 1, 1, 1, 1, 1, 1, 1, 1], "spread": [1, 1, 1, 1, 1, 1, 1, 1, 1], "forwards": {}, "at": 1e300}',
     'KEY: {"logs": [1, 1, 1, 1, 1, 1, 1, 1, 1], "spread": [1, 1, 1, 1, 1, 1, 1, 1, 1], "forwards": {"a": [1]}, "at": "x"}'],
)  # fmt: skip
def test_a_damaged_or_older_file_is_dropped(text, machine, own_cache):
    first = machine.costs()
    expected = ratio(first, 16)
    entry = text.removeprefix("KEY: ")
    body = entry if entry == text else f'{{"version": {VERSION}, "models": {{{json.dumps(first._key())}: {entry}}}}}'
    (own_cache / FILE).write_text(body, encoding="utf-8")
    machine.restart()
    again = machine.costs()
    assert ratio(again, 16) == pytest.approx(expected, rel=0.01) and len(machine.passes) == 2 * COUNT
    assert json.loads((own_cache / FILE).read_text(encoding="utf-8"))["version"] == VERSION


def test_one_damaged_entry_costs_the_others_nothing(machine, own_cache):
    costs = machine.costs()
    expected = ratio(costs, 16)
    file = json.loads((own_cache / FILE).read_text(encoding="utf-8"))
    (own_cache / FILE).write_text(json.dumps({**file, "models": {"other": {"logs": 3}, **file["models"]}}), encoding="utf-8")
    machine.restart()
    again = machine.costs()
    assert ratio(again, 16) == pytest.approx(expected, rel=0.01) and len(machine.passes) == COUNT
    again.keep()
    assert list(json.loads((own_cache / FILE).read_text(encoding="utf-8"))["models"]) == list(file["models"])


def test_the_file_stays_small(machine, own_cache):
    own_cache.mkdir(parents=True, exist_ok=True)
    many = {f"model {number}": {**PassTimes().state(), "at": number} for number in range(MOST + 5)}
    (own_cache / FILE).write_text(json.dumps({"version": VERSION, "models": many}), encoding="utf-8")
    machine.costs().curve()
    kept = json.loads((own_cache / FILE).read_text(encoding="utf-8"))["models"]
    assert len(kept) == MOST
    assert "model 68" in kept and "model 6" in kept and "model 5" not in kept, "those that ran last stay"
    assert len((own_cache / FILE).read_bytes()) < 64_000


def test_processes_that_write_at_once_lose_nothing(machine, own_cache):
    several = [ModelCosts({"model": str(number)}, target(), machine.report) for number in range(8)]
    for costs in several:
        costs.curve()
    (own_cache / FILE).unlink()
    writers = [threading.Thread(target=costs.keep) for costs in several]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(json.loads((own_cache / FILE).read_text(encoding="utf-8"))["models"]) == 8
    assert not list(own_cache.glob("*.tmp"))


def test_a_folder_that_cannot_be_written_costs_the_next_start_alone(machine, own_cache):
    own_cache.write_text("a file where the folder should be", encoding="utf-8")
    assert ratio(machine.costs(), 16) == pytest.approx(26 / 11, rel=0.05)


def test_a_page_shows_the_certain_times_of_this_device_and_of_its_target_first(machine):
    assert measured(processor(), "tiny") is None
    machine.costs(name="/srv/models/tiny").curve()
    machine.costs(name="other").curve()
    machine.costs(name="guided", rows=2).curve()
    ModelCosts({"model": "beside", "rows": "1"}, target(), machine.report, unit=machine.costs(name="other")).keep()
    found = measured(processor(), "tiny")
    assert found["model"] == "tiny of 64 tokens"
    assert set(TIMED[:3]) < set(found["rows"]) < set(cost.SIZES), "the widest were never timed"
    assert found["milliseconds"] == pytest.approx([10 + rows for rows in found["rows"]], rel=0.1)
    last = measured(processor(), "a target that never ran")
    assert last["model"] == "other of 64 tokens"
    assert measured("another processor", "tiny") is None


def test_a_page_shows_no_times_that_nobody_measured(machine, own_cache):
    own_cache.mkdir(parents=True)
    key = json.dumps({"device": f"cpu {processor()}", "rows": "1", "model": "tiny of 64 tokens"})
    good = {**PassTimes().state(), "at": 1}
    for damaged in ({"spread": [1.0] * 9}, {"spread": []}, {"logs": [], "spread": []}, {"logs": [1e6] * 9, "spread": [0.0] * 9}):
        file = {"version": VERSION, "models": {key: {**good, **damaged}, "no JSON": good, "[]": good}}
        (own_cache / FILE).write_text(json.dumps(file), encoding="utf-8")
        assert measured(processor(), "tiny") is None
