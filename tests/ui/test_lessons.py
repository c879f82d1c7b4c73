"""Every shipped lesson can be given on any recording of its method, asks before it shows, and knows the right answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specviz.errors import BadInput
from specviz.trace import store
from specviz.trace.schema import Note, Trace
from specviz.ui import lessons
from specviz.ui.lessons import Lesson, Question
from specviz.ui.settings import Settings
from specviz.ui.shared import make
from specviz.ui.tabs import learn_tab
from specviz.ui.widgets.gallery import Gallery
from tests.support.fakes.ui import FakeEngine, app, gallery, recorded
from tests.support.traces.samples import sample_trace

SHIPPED = lessons.load(Settings().lessons)
EVERY_PAGE = [(name, number) for name, lesson in SHIPPED.items() for number in range(len(lesson.pages))]


def lesson(**page: object) -> Lesson:
    return Lesson("test", "Title", "About", "", "stand", ({"text": ["Step {step}."], **page},))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("name", "number"), EVERY_PAGE)
def test_shipped_pages_can_be_given_on_any_recording(name: str, number: int, seed: int) -> None:
    made = lessons.page(SHIPPED[name], number, recorded(SHIPPED[name].method, 20, seed))
    assert made.text and "{" not in "".join(made.text) + made.reveal
    assert bool(made.ask) == bool(made.reveal), "a question without a reveal teaches nothing"
    if made.ask is not None:
        assert 1 < len(made.ask.choices) <= 6 and len(set(made.ask.choices)) == len(made.ask.choices)
    if made.veiled:
        assert made.ask is not None and made.step is not None


@pytest.mark.parametrize("at", lessons.PLACES)
@pytest.mark.parametrize("method", ["autoregressive", "prompt_lookup", "token_recycling", "speculative_sampling"])
def test_there_is_a_step_for_every_place_in_every_kind_of_run(at: str, method: str) -> None:
    trace = sample_trace(9, method=method)
    assert 0 <= lessons.find(trace, at) < 9
    assert lessons.find(trace, {"step": 4}) == 4 and lessons.find(trace, {"step": 400}) == 8


def test_places_mean_what_they_say() -> None:
    trace = sample_trace(40, method="token_recycling")
    accepted = [step.accepted for step in trace.steps if step.cut is None]
    assert trace.steps[lessons.find(trace, "longest")].accepted == max(accepted)
    assert trace.steps[lessons.find(trace, "none_kept")].accepted == 0
    stopped = trace.steps[lessons.find(trace, "first_rejection")]
    assert stopped.path and any(node.parent == stopped.path[-1] for node in stopped.nodes)


def right(ask: Question | None) -> str:
    assert ask is not None
    return ask.choices[ask.answer]


@pytest.mark.parametrize("step", range(12))
def test_the_answer_is_what_the_run_did(step: int) -> None:
    trace = sample_trace(12, method="token_recycling", cut=False)
    kept = lessons.page(lesson(at={"step": step}, ask={"about": "kept"}), 0, trace).ask
    bonus = lessons.page(lesson(at={"step": step}, ask={"about": "bonus"}), 0, trace).ask
    assert right(kept) == str(trace.steps[step].accepted)
    said = trace.steps[step].bonus
    assert said is not None and right(bonus) == lessons.show_whitespace(said.text)


def test_a_veiled_step_gives_nothing_away_but_the_draft() -> None:
    trace = sample_trace(10, method="speculative_sampling")
    hidden = lessons.veiled(trace, 4).steps[4]
    whole = trace.steps[4]
    assert [node.text for node in hidden.nodes] == [node.text for node in whole.nodes]
    assert [node.q for node in hidden.nodes] == [node.q for node in whole.nodes]
    assert all(node.p is None and node.threshold is None and node.draw is None for node in hidden.nodes[1:])
    assert not hidden.path and not hidden.emitted and not hidden.rows and hidden.bonus is None
    assert {node.status for node in hidden.nodes} <= {"root", "skipped", "pruned"}
    tell = ("growth", "traversal", "typical", "reward", "rows")
    told = replace(whole, notes=tuple(Note(kind, {}) for kind in tell))
    assert lessons.veiled(replace(trace, steps=(told,)), 0).steps[0].notes == (Note("growth", {}),)
    assert lessons.veiled(trace, 4).steps[:4] == trace.steps[:4] and len(lessons.veiled(trace, 4).steps) == 5


def test_token_text_cannot_become_markup() -> None:
    assert lessons.filled("Say `{x}`", {"x": "<img src=1 onerror=alert(1)>"}) == (
        "Say <code>&lt;img src=1 onerror=alert(1)&gt;</code>"
    )
    assert lessons.filled("{unknown} {x.__class__}", {"x": "1"}) == "{unknown} {x.__class__}"


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ({"text": []}, "needs a text"),
        ({"text": ["a"], "at": "somewhere"}, "an at that is one of"),
        ({"text": ["a"], "ask": {"about": "kept"}}, "need an at"),
        ({"text": ["a"], "at": "first", "ask": {"about": "luck"}}, "'luck'"),
        ({"text": ["a"], "ask": {"question": "?", "choices": ["a"], "answer": 1}}, "no choice number 1"),
        ({"at": "first"}, "text"),
        ({"text": ["a"], "panel": 3}, "opens the panel 3"),
    ],
)
def test_a_teacher_s_mistake_is_named(tmp_path: Path, page: dict[str, object], said: str) -> None:
    file = {"title": "T", "about": "A", "method": "stand", "pages": [page]}
    (tmp_path / "mine.json").write_text(json.dumps(file), encoding="utf-8")
    with pytest.raises(BadInput, match="mine.json") as caught:
        lessons.load(tmp_path)
    assert said in str(caught.value)


def test_a_page_hides_the_verdict_until_it_is_revealed(tmp_path: Path) -> None:
    shared = app(tmp_path)
    found = learn_tab.playable(shared, SHIPPED)
    one = found["01-one-step"]
    number = next(number for number, page in enumerate(one.pages) if page.get("veiled"))
    before = learn_tab.view(shared, one, number)
    after = learn_tab.view(shared, one, number, guess=before.choices[0], revealed=True)
    hidden, whole = (store.read(view.feed.split("\n", 1)[1].encode()) for view in (before, after))
    assert before.asks and not before.verdict and hidden.steps[json.loads(before.at)["step"]].bonus is None
    assert not after.asks and "Answer" in after.verdict and whole == recording(tmp_path, one.trace)


def recording(folder: Path, name: str) -> Trace:
    return store.read(folder / "traces" / f"{name}.spectrace.jsonl")


def test_a_page_may_open_one_of_several_stories(tmp_path: Path) -> None:
    shared = app(tmp_path)
    asked = [learn_tab.view(shared, lesson(at="first", panel=panel), 0).at for panel in (True, "rows", False)]
    assert [json.loads(one) for one in asked] == [{"step": 0, "panel": panel} for panel in (True, "rows", False)]


def test_the_lesson_about_a_batch_shows_holes_and_a_sweep() -> None:
    """What its pages say about two steps is so in the recording that ships."""
    one = SHIPPED["18-four-rows-one-cache"]
    trace = Gallery(Settings().traces).get(one.trace).trace
    steps = [lessons.page(one, number, trace).step for number in (2, 3)]
    told = [next(note.data for note in trace.steps[at or 0].notes if note.type == "rows") for at in steps]
    assert [note["swept"] for note in told] == [False, True] and {note["every"] for note in told} == {4}
    for note in told:
        holes = [row["holes"] for row in note["rows"]]
        assert len(holes) > 1 and len(set(holes)) > 1 and max(holes) > 3
    rows = [len(note.data["rows"]) for step in trace.steps for note in step.notes if note.type == "rows"]
    assert rows[0] == 4 > rows[-1], "rows that are done leave"


def test_lessons_without_a_recording_are_not_offered(tmp_path: Path) -> None:
    wanted = tuple({one.method for one in SHIPPED.values()})
    everything = make(Settings(traces=gallery(tmp_path / "all", wanted)), FakeEngine())
    assert set(learn_tab.playable(everything, SHIPPED)) == set(SHIPPED)
    some = make(Settings(traces=gallery(tmp_path / "some", ("prompt_lookup",))), FakeEngine())
    assert set(learn_tab.playable(some, SHIPPED)) == {"02-copying"}
