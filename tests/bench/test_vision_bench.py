"""The suite about pictures on a tiny model: every arm, its parts taken away, prefill lengths, and what is not at hand."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from specviz.bench import runner
from specviz.bench.kit.drafter_cost import layer_cost
from specviz.bench.kit.measure import PictureQuestion, TimedRun
from specviz.bench.kit.report import Report, Row
from specviz.bench.suites import vision
from specviz.engine.loop import Decoding
from specviz.engine.recorder import Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.errors import BadInput, ModelUnavailable
from specviz.methods.parameters import build
from specviz.methods.registry import all_methods
from tests.support.tiny.text import Letters, decode
from tests.support.worlds.vision import parts_of, world

HERE = world()


def plain(loaded: object, target: Any) -> Any:
    """What stands for the control here: the tiny network itself."""
    return parts_of(HERE, Warp()).drafter_weights("dream")


@pytest.fixture(autouse=True)
def trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "plain_crossed", plain)


class TinyBench:
    """Runs the methods on the tiny target, whatever picture is given."""

    def __init__(self, lacking: str = "", tokens: int = 14) -> None:
        self.lacking, self.tokens = lacking, tokens
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def prepared(self, method: str, asked: PictureQuestion, temperature: float, *, parameters: dict[str, Any]) -> Any:
        assert asked.picture.startswith(b"\x89PNG") and asked.question
        self.asked.append((method, parameters))
        card, parts = all_methods()[method], parts_of(HERE, Warp(temperature))
        if method == self.lacking:
            raise ModelUnavailable(f"make it with train {method}")
        values = build(card.parameters, parameters, method)
        ready = SimpleNamespace(parts=parts, loaded=None, target=parts.target, prompt_ids=list(HERE.prompt))
        ready.compose = lambda: card.compose(values, ready.parts)
        ready.decoding = lambda composed, seed, record, cancel: Decoding(
            HERE.target, composed, HERE.prompt, parts.warp, Noise(seed), self.tokens, Recorder(Letters(), record)
        )
        return ready

    def timed_run(self, ready: Any, seed: int = 0, record: str = "off") -> TimedRun:
        run = decode(HERE.target, ready.compose(), HERE.prompt, self.tokens, ready.parts.warp, seed, record)
        return TimedRun(1.0, tuple(run.steps), tuple(run.ids))


def asked(many: int = 2) -> list[PictureQuestion]:
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "PNG")
    return [PictureQuestion(out.getvalue(), "what is it")] * many


def arms(bench: TinyBench, methods: tuple[str, ...] = (), temperature: float = 0.0) -> tuple[Report, dict[str, Any]]:
    report = Report("test", {})
    return report, dict(vision.arms(report, bench, asked(), methods, temperature))  # type: ignore[arg-type]


def test_nothing_goes_aside_where_nobody_looks() -> None:
    bench = TinyBench()
    ready = bench.prepared("dream", asked(1)[0], 0.0, parameters=vision.TREE)
    assert all(step.time.aside == 0 for step in bench.timed_run(ready, record="off").steps)
    assert all(step.time.aside > 0 for step in bench.timed_run(ready, record="tree").steps)


def test_the_drafters_layer_is_measured_against_a_target_pass() -> None:
    def row_of(bench: TinyBench) -> Row:
        return layer_cost(lambda: bench.prepared("hivis", asked(1)[0], 0.0, parameters={}), "hivis", 20)

    row = row_of(TinyBench())
    assert row.value is not None and 0 < row.value < 10 and row.at_most and row.goal == 0.1
    lacking = row_of(TinyBench(lacking="hivis"))
    assert lacking.value is None and "train hivis" in lacking.detail


@pytest.mark.slow
@pytest.mark.parametrize("temperature", vision.TEMPERATURES)
def test_every_drafter_stands_beside_every_other(temperature: float) -> None:
    report, found = arms(TinyBench(), temperature=temperature)
    assert list(found) == list(vision.ARMS) and len(report.rows) == len(vision.ARMS)
    assert all(row.value is not None and row.value >= 1 for row in report.rows)
    rows = list(vision.comparisons(found, temperature))
    assert len(rows) == 7 and rows[0].goal == 1.0
    assert rows[-1].detail == max(found, key=lambda name: sum(found[name].tau))
    depths = list(vision.by_depth(found, temperature))
    assert [row.name.split(" of ")[1].split(", T")[0] for row in depths] == list(vision.BY_DEPTH)


@pytest.mark.slow
def test_parts_are_taken_away_one_at_a_time() -> None:
    bench = TinyBench()
    arms(bench, ("hivis", "dream"))
    given = {name: parameters for name, (method, parameters) in vision.ARMS.items() if method in ("hivis", "dream")}
    changes = {name: {k: v for k, v in one.items() if k not in vision.TREE} for name, one in given.items()}
    assert sorted(changes.values(), key=str) == sorted(
        [{}, {}, {}, {"residuals": "off"}, {"cross_attention": False}, {"keep": 1.0}], key=str
    )
    assert {method for method, _ in bench.asked} == {"hivis", "dream"}


@pytest.mark.slow
def test_feature_drafters_grow_trees_of_one_size() -> None:
    report, found = arms(TinyBench(tokens=20), ("eagle2", "hivis", "dream"))
    assert len(found) == 7
    for name, (_, parameters) in vision.ARMS.items():
        assert name not in found or vision.TREE.items() <= parameters.items()


@pytest.mark.slow
def test_prefills_are_told_as_the_drafters_tell_them() -> None:
    rows = {row.name.split(" of ")[1]: row for row in vision.prefills(TinyBench(), asked()[0], ())}  # type: ignore[arg-type]
    whole, text = HERE.layout.length, HERE.layout.length - len(HERE.layout.visual)
    assert rows["eagle2"].value == 1.0
    assert rows["hivis"].value == rows["language_only"].value == text / whole
    assert f"{text} of the target's {whole} tokens; {text} of them are text" in rows["hivis"].detail
    assert text / whole < (rows["dream"].value or 0) < 1


@pytest.mark.slow
@pytest.mark.slow
def test_speeds_count_the_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "PAIRS", 2)
    rows = list(vision.speeds(TinyBench(tokens=6), asked(1), ("hivis", "token_recycling")))  # type: ignore[arg-type]
    assert [row.name.split(" of ")[-1] for row in rows[:2]] == [
        "token_recycling with prefill, T = 0", "hivis with prefill, T = 0",
    ]  # fmt: skip
    assert all(row.value and row.value > 0 for row in rows) and rows[-1].goal == 1.8


@pytest.mark.slow
def test_what_is_not_at_hand_is_said_once() -> None:
    report, found = arms(TinyBench("dream"))
    missing = [row for row in report.rows if row.value is None]
    assert len(missing) == 4 and all("train dream" in row.detail for row in missing)
    assert not any("DREAM" in row.name for row in vision.comparisons(found, 0.0))
    assert "dream" not in [row.name for row in vision.prefills(TinyBench("dream"), asked()[0], ())]  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_control_is_said_to_be_trained_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(loaded: object, target: object) -> None:
        raise ModelUnavailable("make it with train vlm_dream_plain")

    monkeypatch.setattr(vision, "plain_crossed", none)
    report, found = arms(TinyBench(), ("dream",))
    missing = [row for row in report.rows if row.value is None]
    assert [row.name for row in missing] == ["τ of dream without its middle loss, T = 0"]
    assert "train vlm_dream_plain" in missing[0].detail and "dream" in found
    assert len(list(vision.comparisons(found, 0.0))) == 3


@pytest.mark.slow
def test_the_controls_own_network_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def other(loaded: object, target: Any) -> Any:
        used.append(target)
        return plain(loaded, target).without_cross_attention()

    monkeypatch.setattr(vision, "plain_crossed", other)
    found = arms(TinyBench(), ("dream",))[1]
    assert used and found[vision.NO_MIDDLE].lengths == found["dream without cross-attention"].lengths


def test_held_out_scenes_are_whole_pictures() -> None:
    found = vision.held_out()
    assert len(found) == 24 and len({one.picture for one in found}) == 24
    assert all(Image.open(io.BytesIO(one.picture)).size == (128, 128) and one.question for one in found)


def test_a_missing_sheet_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="get them with the project"):
        vision.held_out(tmp_path)


@pytest.mark.slow
def test_the_suite_is_known_and_picks_its_own_target(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = TinyBench(tokens=4)
    monkeypatch.setattr(vision, "Bencher", lambda target, tokens: bench)
    monkeypatch.setattr(vision, "held_out", lambda: asked(8))
    monkeypatch.setattr(vision, "PAIRS", 1)
    report = runner.run_suite("vision", ("hivis",), report=lambda line: None, short=True)
    assert report.where["target"] == "scenes-vlm"
    names = [row.name for row in report.rows]
    assert sum("τ of hivis" in name for name in names) == 4 and any("prefill of hivis" in name for name in names)


def test_a_context_that_is_replaced_keeps_its_picture() -> None:
    parts = parts_of(HERE, Warp())
    assert parts.using(prompt_key="other").picture is HERE.layout
    assert len(HERE.layout.of_text) == HERE.layout.length - len(HERE.layout.hidden)
