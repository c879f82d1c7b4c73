"""The chain suite's arithmetic: what is counted from steps, when an intermediate model pays, and what the app then says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specviz.bench.kit.measure import Bencher, TimedRun
from specviz.bench.kit.report import Report
from specviz.bench.suites import chain
from specviz.bench.suites.chain import ChainCounts, GroupRuns, side_by_side
from specviz.engine.cost import CostCurve
from specviz.errors import ModelUnavailable
from specviz.methods.polybasic.chain_lengths import ChainLengths, WeighedModel, warning, weighed
from specviz.methods.polybasic.cost_model import CascadeForecast, Costs, Lengths, as_note, forecast, kept_of, passes_for
from specviz.methods.polybasic.method import INTERMEDIATES
from specviz.trace.notes.base import plain
from tests.support.traces.made import SILENT, TREE, with_note
from tests.support.viewer.notes import CHAINS

ALONE, GOOD = Lengths(0.0, 1.9, 2.0), Lengths(0.95, 1.8, 2.0)
TARGET = CostCurve((1, 32), (40.0, 50.0))


def costs(share: float) -> Costs:
    """An intermediate model whose passes cost this share of the target's."""
    return Costs(TARGET, CostCurve((1, 32), (40 * share, 50 * share)), 2.8, 3)


def test_tokens_a_pass_follow_the_capped_geometric() -> None:
    for generator in (0.0, 0.3, 0.9, 1.0):
        counted = 1 + sum(generator**place for place in range(1, 7))
        assert kept_of(generator, 6) == pytest.approx(counted)


def test_a_buffer_takes_as_many_passes_as_a_drawn_chain_of_them_does() -> None:
    generator = np.random.default_rng(0)
    for size, most in ((1, 4), (6, 3), (19, 4)):
        drawn = generator.integers(1, most + 1, (40_000, size)).cumsum(1)
        counted = float((drawn < size).sum(1).mean() + 1)
        assert passes_for(size, (1 + most) / 2) == pytest.approx(counted, rel=0.12), (size, most)
    assert passes_for(4, 1.0) == 4


def test_what_the_target_throws_away_was_paid_for() -> None:
    """Counted by hand: rounds of 19 gathered tokens, each kept with probability 0.9 while all before it were."""
    size, below = 19, 1.5
    _, found = forecast(costs(0.6), ALONE, Lengths(0.9, below, 2.0), size)
    passes = passes_for(size, below)
    kept = kept_of(0.9, passes * below)
    round_time = found.above_new + passes * (found.new + 2.0 * found.drafter)
    assert found.after == pytest.approx(round_time / kept)
    assert found.below < 0.8 * below, "the published form would count every token of a pass as one that stays"


def test_the_condition_is_the_papers_and_the_exact_form_counts_the_drafter_too() -> None:
    found = CascadeForecast(40, 46, 15, 2.8, 1.9, 5.5, 1.8, 2.0, 2.0)
    assert found.bound == pytest.approx(1.8 * (1 / 1.9 - 1 / 5.5))
    assert found.margin == pytest.approx(found.bound - 15 / 40)
    assert found.gain == pytest.approx(((40 + 5.6) / 1.9) / (46 / 5.5 + (15 + 5.6) / 1.8))
    free = replace(found, drafter=0.0, above_new=40)
    for share in (0.1, 0.5, 0.6, 0.62, 0.65, 0.9):
        one = replace(free, new=40 * share)
        assert (one.margin > 0) == one.pays, "without the drafter's time both forms are one"


@pytest.mark.parametrize(("share", "pays"), [(0.2, True), (0.35, True), (0.9, False), (1.2, False)])
def test_a_cheap_model_pays_and_a_dear_one_does_not(share: float, pays: bool) -> None:
    size, found = forecast(costs(share), ALONE, GOOD)
    assert found.pays == pays
    assert 1 <= size <= 32
    others = [forecast(costs(share), ALONE, GOOD, one)[1].after for one in range(1, 33)]
    assert found.after == pytest.approx(min(others)), "the buffer that pays most"


def test_a_model_that_is_often_wrong_does_not_pay_however_cheap() -> None:
    assert not forecast(costs(0.05), Lengths(0, 3.0, 2), Lengths(0.4, 1.2, 2))[1].pays


class IntermediateModel:
    """What choosing needs to know of one."""

    branches = True

    def __init__(self, name: str, share: float) -> None:
        self.name, self.title = name, f"the {name} model"
        self.cost = lambda: costs(share).new


KNOWN = ChainLengths("t", "eagle3", "made up", ALONE, {"good": GOOD, "dear": GOOD})


def made(block: int = 0, **named: float) -> WeighedModel:
    ((name, share),) = named.items()
    return weighed(IntermediateModel(name, share), TARGET, 2.8, KNOWN, 3, block, 8)


def test_a_chosen_model_is_judged_by_itself_and_all_that_were_weighed_are_told() -> None:
    fine, dear = made(good=0.3), made(dear=0.95)
    assert fine.gain > 1 and fine.block > 1
    assert warning(fine, [dear, fine]) == ""
    alone = warning(dear, [dear])
    assert dear.forecast is not None and f"its pass takes {dear.forecast.ratio:.2f} target passes" in alone
    assert "Predicted before the run: this intermediate model is not expected to pay on this machine: the dear model, 0." in alone
    assert f"it pays below {dear.forecast.bound:.2f}." in alone and "none of" not in alone
    worse = made(good=1.2)
    both = warning(dear, [worse, dear])
    assert "Predicted before the run: none of the 2 intermediate models is expected to pay" in both
    for one in (worse, dear):
        assert one.forecast is not None
        assert f"{one.intermediate.title}, {one.gain:.2f}× the speed of the chain without it" in both
        assert f"it pays below {one.forecast.bound:.2f}" in both
    assert made(good=0.3, block=5).block == 5, "what the user says counts"


def test_a_model_nobody_calibrated_says_how_to_find_out() -> None:
    strange = made(strange=0.3)
    assert (strange.block, strange.forecast, strange.gain) == (8, None, 1.0)
    assert warning(strange, [strange]).endswith("never calibrated, so whether it pays is unknown.")
    assert "`do this` finds out" in warning(strange, [strange], "do this")
    both = warning(made(dear=0.95), [made(dear=0.95), strange])
    assert "the strange model, never calibrated" in both


def test_a_slower_drafter_moves_the_forecast() -> None:
    quick, slow = (weighed(IntermediateModel("good", 0.3), TARGET, forward, KNOWN, 3, 8, 8) for forward in (0.5, 20.0))
    assert quick.gain > slow.gain


def test_lengths_of_several_targets_live_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "polybasic.json"
    KNOWN.save(path)
    assert ChainLengths.load(path) == (KNOWN,)
    other = replace(KNOWN, target="large", drafter="copy", middles={"small": GOOD})
    other.save(path)
    again = replace(KNOWN, source="once more", middles={"good": Lengths(0.5, 1.0, 1.0)})
    again.save(path)
    assert ChainLengths.find(path, "large", "copy") == other
    assert ChainLengths.find(path, "t", "eagle3") == replace(again, middles={"dear": GOOD, **again.middles})
    assert ChainLengths.find(path, "t", "copy") is None
    path.write_text('{"chains": [{"target": 3}]}', encoding="utf-8")
    with pytest.raises(ModelUnavailable, match="python -m specviz calibrate polybasic"):
        ChainLengths.load(path)


@pytest.mark.parametrize(("draft", "below", "names"), [("", "eagle3", set(INTERMEDIATES)), ("small", "copy", {"small"})])
def test_calibrating_a_pair_keeps_what_is_known_of_another(
    draft: str, below: str, names: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, object]]] = []

    def counted(bench: Bencher, prompts: object, method: str, parameters: dict[str, object]) -> ChainCounts:
        assert (bench.target, bench.settings) == ("large", {"draft": draft} if draft else {})
        asked.append((method, parameters))
        return ChainCounts(2, 6, 4, 3, 6, 4, 3)

    monkeypatch.setattr(chain, "count_chain", counted)
    path = tmp_path / "polybasic.json"
    KNOWN.save(path)
    chain.calibrate("large", report=lambda line: None, draft=draft, out=path)
    found = ChainLengths.find(path, "large", below)
    assert found is not None and set(found.middles) == names
    assert found.middles.popitem()[1] == Lengths(0.75, 2.0, 4 / 3)
    assert ChainLengths.find(path, "t", "eagle3") == KNOWN
    assert asked[0][0] == ("prompt_lookup" if draft else "eagle3")
    assert [values["middle"] for _, values in asked[1:]] == (["draft"] if draft else list(INTERMEDIATES))


def test_the_lengths_that_ship_are_the_default_targets() -> None:
    assert ChainLengths.find(chain.LENGTHS, "smollm2-135m-instruct", "eagle3") is not None


def test_counting_leaves_out_steps_that_were_cut() -> None:
    step = with_note(TREE, "belts", CHAINS["belts"])
    found = ChainCounts()
    found.add([step, replace(step, cut="budget")])
    assert (found.rounds, found.emitted, found.passes, found.buffered) == (1, 3, 3, 6)
    assert found.between == Lengths(2 / 3, 2.0, 2.0), "forwards of the drafter, without the passes of the intermediate model"
    alone = ChainCounts()
    alone.add([TREE])
    assert alone.alone == Lengths(0.0, 3.0, 1.0)


def test_grouped_runs_count_acceptance_stages_and_the_second_half() -> None:
    steps = (SILENT, with_note(TREE, "layers", CHAINS["layers"]))
    found = GroupRuns()
    timed = TimedRun(1.0, steps, (1, 2, 3))
    found.add(timed, timed)
    assert (found.accepted, found.judged, found.drafted, found.stages) == (2, 3, 5, 3)
    assert found.late == [3.0] and found.drafting > 0
    assert (found.whole, found.written, found.each) == (1000.0, 3, pytest.approx(1000 / 3))


def test_every_group_size_is_a_row_of_acceptance_stages_and_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def grouped(bench: Any, prompts: Any, parameters: Any) -> GroupRuns:
        size, repaired = parameters["group"], parameters["calibrated"]
        kept = 100 - 4 * size * (1 if repaired else 2)
        return GroupRuns([2.0], kept, 100, 600.0 / size, 100, 3000.0, 100, 30 // size, [1.5])

    monkeypatch.setattr(chain, "_group_runs", grouped)
    report = Report("chain", {})
    side_by_side(report, None, [])  # type: ignore[arg-type]
    assert len(report.rows) == 2 * (5 + 4)
    table = report.as_table()
    assert "| draft model | cache | N | acceptance | attention stages | ms a drafted token | ms a written token |" in table
    assert "| small_draft | repaired each round | 1 | 0.960 (+0 %) | 30 | 6.00 (1.00×) | 30.0 (1.00×) | 2.00 | 1.50 |" in table
    assert "| copy | repaired each round | 5 | 0.800 (-17 %) | 6 | 1.20 (5.00×) | 30.0 (1.00×) | 2.00 | 1.50 |" in table
    assert "| copy | never repaired | 5 | 0.600 (-38 %) | 6 | 1.20 (5.00×) | 30.0 (1.00×) | 2.00 | 1.50 |" in table
    assert report.rows[4].value == pytest.approx(6 / 30), "the critical path against one layer at a time"


def test_a_forecast_on_the_screen_has_all_its_numbers() -> None:
    shown = plain(as_note(forecast(costs(0.3), ALONE, GOOD)[1]))
    assert set(CHAINS["belts"]["forecast"]) == set(shown)
    assert all(isinstance(value, float) for value in shown.values())
