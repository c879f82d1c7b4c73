"""Every shipped lesson can be given on any recording of its method, asks before it shows, and knows the right answer."""

import json
import re
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import msgspec
import pytest
from msgspec.structs import replace

from specviz.errors import BadInput
from specviz.paths import ASSETS
from specviz.trace import store
from specviz.trace.schema import REJECTED, RESAMPLED, Note
from specviz.ui import lessons
from specviz.ui.app_state import make
from specviz.ui.archive import Gallery
from specviz.ui.lessons import Lesson, Page
from specviz.ui.settings import Settings
from specviz.ui.tabs import learn_tab
from tests.support.fakes.ui import FakeEngine, app, gallery, recorded
from tests.support.lessons import SHIPPED, shipped
from tests.support.traces.samples import sample_trace

EVERY_PAGE = [(name, number) for name, lesson in SHIPPED.items() for number in range(len(lesson.pages))]


def view(shared, one, number, guess=None, revealed=False, *after):
    """What a page of the Learn tab shows; ``after`` are the lessons behind its own."""
    offered = learn_tab.playable(shared, {each.name: each for each in (one, *after)})
    with gr.Blocks(), gr.Tab() as opened:
        tab = learn_tab.LearnTab(shared, offered, opened)
    updates = tab.page(one.name, number, guess, revealed)
    choices, verdict = updates[tab.guess].choices, updates[tab.verdict].value
    return SimpleNamespace(
        feed=updates[tab.stage], at=json.loads(updates[tab.at]), choices=[name for name, _ in choices], verdict=verdict
    )


def lesson(**page):
    made = {"title": "Title", "about": "About", "method": "stand", "name": "test", "pages": [{"text": ["Step {step}."], **page}]}
    return msgspec.convert(made, Lesson)


@pytest.mark.spread(6)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("name", "number"), EVERY_PAGE)
def test_shipped_pages_can_be_given_on_any_recording(name, number, seed):
    beside = recorded(SHIPPED[name].beside, 20, seed) if SHIPPED[name].beside else None
    trace = recorded(SHIPPED[name].method, 20, seed)
    made = lessons.page(SHIPPED[name], number, trace, beside)
    said = re.sub(r"<code>.*?</code>", "", " ".join((*made.text, made.reveal)))
    assert made.text and not re.search(r"\*|`|\{", said), "its own marks"
    assert bool(made.ask) == bool(made.reveal), "a question without a reveal teaches nothing"
    if made.ask is not None:
        assert 1 < len(made.ask.choices) <= 8 and len(set(made.ask.choices)) == len(made.ask.choices)
        assert trace.run.modality != "image" or "token" not in made.ask.question


def test_a_place_is_looked_for_behind_the_steps_that_were_shown():
    trace = sample_trace(40, method="token_recycling")
    pages = tuple(Page(("a",), at) for at in ("longest", "next_rejection", "longest", "none_kept"))
    first, later, again, last = lessons.places(Lesson("", "", "", pages), trace)
    assert first == again < later < last
    assert lessons.find(trace, "longest", after=30) > 30 > lessons.find(trace, "longest")


def test_most_predictions_about_recorded_runs_can_be_reasoned():
    """The drafter's probabilities, which the question states, suggest the number that is kept."""
    told, right = 0, 0
    for path in sorted((ASSETS / "traces").glob("*.gz")):
        trace = store.read(path)
        for at in lessons.places(Lesson("", "", "", lessons.PREDICTIONS), trace)[:2]:
            if sure := lessons.likeliest(trace.steps[at]):
                told, right = told + 1, right + (sum(q >= 0.5 for q in accumulate(sure, min)) == trace.steps[at].accepted)
    assert told > 50 and right > 0.85 * told


def right(ask):
    return ask.choices[ask.answer]


@pytest.mark.parametrize("step", range(12))
def test_the_answer_is_what_the_run_did(step):
    trace = sample_trace(12, method="token_recycling", cut=False)
    kept = lessons.page(lesson(at=step, ask={"about": "kept"}), 0, trace).ask
    bonus = lessons.page(lesson(at=step, ask={"about": "bonus"}), 0, trace).ask
    assert right(kept) == str(trace.steps[step].accepted)
    said = trace.steps[step].bonus
    assert right(bonus) == lessons.show_whitespace(said.text)


def test_a_veiled_step_gives_nothing_away_but_the_draft():
    trace = sample_trace(10, method="speculative_sampling")
    hidden = lessons.veiled(trace, 4).steps[4]
    whole = trace.steps[4]
    assert [node.text for node in hidden.nodes] == [node.text for node in whole.nodes]
    assert [node.q for node in hidden.nodes] == [node.q for node in whole.nodes]
    assert all(node.p is None and node.threshold is None and node.draw is None for node in hidden.nodes[1:])
    assert not hidden.path and not hidden.emitted and not hidden.rows and hidden.bonus is None
    assert {node.status for node in hidden.nodes} <= {"root", "skipped", "pruned"}
    tell = ("growth", "traversal", "typical_acceptance", "tree_reward", "batch_cache")
    told = replace(whole, notes=tuple(Note(kind, {}) for kind in tell))
    assert lessons.veiled(replace(trace, steps=(told,)), 0).steps[0].notes == (Note("growth", {}),)
    assert lessons.veiled(trace, 4).steps[:4] == trace.steps[:4] and len(lessons.veiled(trace, 4).steps) == 5


def test_token_text_cannot_become_markup():
    assert lessons.filled("Say `{x}`", {"x": "<img src=1 onerror=alert(1)>"}) == (
        "Say <code>&lt;img src=1 onerror=alert(1)&gt;</code>"
    )
    assert lessons.filled("{unknown} {x.__class__}", {"x": "1"}) == "{unknown} {x.__class__}"
    linked = '<a href="?tab=play&amp;play=one">drag</a>'
    assert lessons.filled('[drag](?tab=play&play=one) [x](https://x) [y](?tab=a" onclick=b)', {}).startswith(f"{linked} [x](")


def test_a_panel_may_have_the_name_that_its_note_had_before():
    panels = [lessons.page(lesson(panel=written), 0, sample_trace(4)).panel for written in ("rows", "batch_cache", True)]
    assert panels == ["batch_cache", "batch_cache", True]


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ({"text": []}, "needs a text"),
        ({"text": ["a"], "at": "somewhere"}, "its at must be one of"),
        ({"text": ["a"], "ask": {"about": "kept"}}, "need an at"),
        ({"text": ["a"], "at": "first", "ask": {"about": "luck"}}, "'luck'"),
        ({"text": ["a"], "ask": {"question": "?", "choices": ["a"], "answer": 1}}, "no choice number 1"),
        ({"at": "first"}, "text"),
        ({"text": ["a"], "panel": 3}, "panel"),
        ({"text": ["a"], "at": "first", "veiled": True}, "is veiled"),
    ],
)
def test_a_teacher_s_mistake_is_named(tmp_path, page, said):
    file = {"title": "T", "about": "A", "method": "stand", "pages": [page]}
    (tmp_path / "mine.json").write_text(json.dumps(file), encoding="utf-8")
    with pytest.raises(BadInput, match="mine.json") as caught:
        lessons.load(tmp_path)
    assert said in str(caught.value)


def test_a_page_hides_the_verdict_until_it_is_revealed(tmp_path):
    shared = app(tmp_path)
    one = SHIPPED["03-chance"]
    number = max(number for number, page in enumerate(one.pages) if page.veiled)
    before = view(shared, one, number)
    after = view(shared, one, number, guess=before.choices[0], revealed=True)
    hidden, whole = (store.read(shown.feed.split("\n", 1)[1].encode()) for shown in (before, after))
    assert before.choices and not before.verdict and hidden.steps[before.at["step"]].bonus is None
    assert not after.choices and "Answer" in after.verdict and whole == recording(tmp_path, one.trace)


def recording(folder, name):
    return store.read(folder / "traces" / f"{name}.spectrace.jsonl")


def test_a_panel_that_tells_the_answer_is_kept_back(tmp_path):
    shared = app(tmp_path)
    asking = lesson(at="first", panel="reveal", ask={"question": "?", "choices": ["a", "b"], "answer": 0}, reveal="r")
    before, after = (view(shared, asking, 0, revealed=revealed) for revealed in (False, True))
    assert [one.at["panel"] for one in (before, after)] == [False, True]
    notes = [store.read(one.feed.split("\n", 1)[1].encode()).steps[0].notes for one in (before, after)]
    assert not notes[0] and notes[1]


@pytest.mark.spread(6)
@pytest.mark.parametrize(("name", "number"), EVERY_PAGE)
def test_no_page_shows_what_it_or_a_later_one_asks(name, number):
    one, trace, beside = shipped(name)
    for revealed in (False, True):
        seen, at = lessons.shown(one, number, trace, revealed)
        assert 0 <= at < len(seen.steps)
        for later in range(number + revealed, len(one.pages)):
            step = lessons.places(one, trace)[later]
            if not one.pages[later].veiled or step is None or step >= len(seen.steps):
                continue
            hidden = seen.steps[step]
            assert step == at == len(seen.steps) - 1 and seen.end is None, f"page {later + 1} asks about what is seen"
            assert not hidden.path and not hidden.emitted and hidden.bonus is None and not hidden.rows
            assert not {note.type for note in hidden.notes} & lessons.VERDICTS
    stays = lessons.page(one, number, trace, beside).at
    assert stays is None or lessons.shown(one, number, trace, True)[1] == stays, "the step that the text speaks of"


STEP_WORDS = ("kept", "emitted", "bonus", "text", "path")


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", SHIPPED)
def test_no_answer_stands_in_the_text_above_its_question(name):
    one, trace, beside = shipped(name)
    told = ""
    for number, raw in enumerate(one.pages):
        made = lessons.page(one, number, trace, beside)
        told += words(" ".join(made.text))
        for word in STEP_WORDS:
            assert not (raw.veiled and f"{{{word}}}" in " ".join(raw.text)), f"page {number + 1} tells {word}"
        if made.ask is not None:
            answer = words(right(made.ask))
            assert len(answer.split()) < 4 or answer not in told, f"page {number + 1}"
            told += words(made.reveal)


def words(text):
    """Lower-case words without mark-up, so that texts can be searched."""
    return " " + " ".join(re.findall(r"[a-z0-9]+", re.sub(r"<[^>]+>", " ", text.lower()))) + " "


@pytest.mark.parametrize("name", SHIPPED)
def test_every_place_that_a_lesson_names_is_in_its_recording(name):
    one, trace, _ = shipped(name)
    for raw, at in zip(one.pages, lessons.places(one, trace), strict=True):
        step = trace.steps[at or 0]
        if raw.at == "none_kept":
            assert step.accepted == 0 and step.verified
        if raw.at == "relaxed":
            assert any(step.nodes[node].status == "relaxed" for node in step.path)
        if raw.at in ("first_rejection", "next_rejection"):
            rejected = [node for node in step.nodes if node.parent == step.bonus.parent and node.status in (REJECTED, RESAMPLED)]
            assert step.path and rejected
        if raw.at == "longest":
            assert step.accepted == max(other.accepted for other in trace.steps[step.index :] if other.cut is None)


def test_every_lesson_ends_with_a_task_on_its_page_and_its_sheet(tmp_path):
    for name, one in SHIPPED.items():
        _, trace, beside = shipped(name)
        pages = [lessons.page(one, number, trace, beside) for number in range(len(one.pages))]
        assert pages[-1].task and not any(page.task for page in pages[:-1])
        assert f"<b>Task.</b> {pages[-1].task}" in lessons.sheet(one, trace, beside).split("class='answers'")[0]
    last, shared = len(SHIPPED["03-chance"].pages) - 1, app(tmp_path)
    before, after = (view(shared, SHIPPED["03-chance"], last, revealed=over).verdict for over in (False, True))
    assert "Task." not in before and "Task." in after


def test_papers_are_linked():
    assert '<a href="https://arxiv.org/abs/1811.03115"' in lessons.filled("Read arXiv 1811.03115.", {})
    assert lessons.filled("arXiv 12", {}) == "arXiv 12"


def test_an_old_address_still_opens_a_lesson_that_was_renumbered(tmp_path):
    shared = app(tmp_path)
    with gr.Blocks(), gr.Tab() as opened:
        tab = learn_tab.LearnTab(shared, {"03-chance": SHIPPED["03-chance"]}, opened)
    for asked in ("03-chance", "17-chance"):
        request = SimpleNamespace(query_params={"lesson": asked, "at": "2"})
        assert json.loads(tab.opened("03-chance", False, request)[tab.at])["page"] == 1


def test_readme_says_how_many_lessons_there_are():
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    assert f"*Learn* has {len(SHIPPED)} lessons" in " ".join(readme.split())


def test_the_teacher_s_plans_name_the_lessons_and_fill_their_minutes(tmp_path):
    notes = (Settings().lessons / "notes.html").read_text("utf-8")
    titles = {f"{number} · {one.title}" for number, one in enumerate(SHIPPED.values(), 1)}
    for minutes, plan in re.findall(r'<table data-minutes="(\d+)">(.*?)</table>', notes, re.DOTALL):
        rows = re.findall(r"<tr><td>(\d+)</td><td><b>(.*?)</b>", plan)
        assert sum(int(spent) for spent, _ in rows) == int(minutes)
        assert {title for _, title in rows if " · " in title} <= titles and len(rows) > 4
    with gr.Blocks(), gr.Tab() as opened:
        tab = learn_tab.LearnTab(app(tmp_path), {"03-chance": SHIPPED["03-chance"]}, opened)
    assert tab.lesson.sheet("") == notes and not tab.lesson.sheet("no-such-lesson")


def test_every_lesson_leads_to_the_next(tmp_path):
    names = list(SHIPPED)
    for name, following in zip(names, [*names[1:], names[0]], strict=True):
        last = len(SHIPPED[name].pages) - 1
        assert learn_tab.turned(SHIPPED, name, last, 1) == (following, 0)
        assert learn_tab.turned(SHIPPED, name, last, -1) == (name, last - 1)
    assert learn_tab.turned(SHIPPED, names[0], 0, -1) == (names[0], 0)
    shared, one = app(tmp_path), SHIPPED["03-chance"]
    last = len(one.pages) - 1
    before, after = (view(shared, one, last, None, over, SHIPPED["04-speed"]) for over in (False, True))
    assert SHIPPED["04-speed"].title in after.verdict and not before.verdict
    assert [shown.at["done"] for shown in (before, after)] == [False, True]


def test_a_prediction_is_judged_and_no_guess_is_none(tmp_path):
    shared, one = app(tmp_path), SHIPPED["03-chance"]
    choices = view(shared, one, 1).choices
    judged = [view(shared, one, 1, guess, revealed=True).at["right"] for guess in (*choices, None)]
    assert judged == [False, True, False, False, None]
    assert view(shared, one, 1, choices[1]).at["right"] is None, "before the reveal"


def test_a_covered_run_does_not_say_that_its_baseline_is_missing(tmp_path):
    shared, one = app(tmp_path), SHIPPED["03-chance"]
    covered, whole = (json.loads(view(shared, one, number).feed.split("\n")[0]) for number in (0, len(one.pages) - 1))
    assert covered["baseline"] == learn_tab.COVERED and "baseline" not in whole


@pytest.mark.parametrize("name", SHIPPED)
def test_a_sheet_has_every_question_and_the_answers_apart(name):
    one, trace, beside = shipped(name)
    sheet = lessons.sheet(one, trace, beside)
    questions, answers = sheet.split("<section class='answers'>")
    pages = [lessons.page(one, number, trace, beside) for number in range(len(one.pages))]
    asked = [made for made in pages if made.ask]
    assert questions.count("class='boxes'") == len(asked) <= answers.count("<li value=")
    assert all(made.reveal in answers and made.reveal not in questions for made in asked)
    veiled = {made.at for made, raw in zip(pages, one.pages, strict=True) if raw.veiled}
    assert questions.count("class='draft'") == len(veiled)
    asking = next(number for number, made in enumerate(pages) if made.ask)
    later = [made for made in pages[asking:] if not made.ask]
    assert not any(paragraph in questions for made in later for paragraph in made.text)


def test_every_lesson_belongs_to_a_group_and_groups_stand_together():
    listed = [int(title.split(" · ")[0]) for group in learn_tab.groups(SHIPPED).values() for title, _ in group]
    assert listed == list(range(1, len(SHIPPED) + 1)) and all(one.group for one in SHIPPED.values())


@pytest.mark.slow
def test_lessons_without_a_recording_are_not_offered(tmp_path):
    wanted = tuple(dict.fromkeys(name for one in SHIPPED.values() for name in (one.method, one.beside) if name))
    everything = make(Settings(traces=gallery(tmp_path / "all", wanted)), FakeEngine())
    assert set(learn_tab.playable(everything, SHIPPED)) == set(SHIPPED)
    some = make(Settings(traces=gallery(tmp_path / "some", ("prompt_lookup",))), FakeEngine())
    assert set(learn_tab.playable(some, SHIPPED)) == {"02-copying"}
    assert [name for name in learn_tab.course(some) if name not in SHIPPED] == ["run-prompt_lookup"]


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", [one.name for one in Gallery(Settings().traces).of()])
def test_a_recorded_run_asks_for_predictions_and_hides_what_it_asks(name):
    shared = make(Settings(), FakeEngine())
    if (one := learn_tab.course(shared).get(f"run-{name}")) is None:
        assert name in ("autoregressive", "llama_cpp_ngram", "vllm_eagle3"), "no drafts, or drafts that are not told in full"
        return
    trace = shared.archive.trace(name)
    first, later, _ = steps = lessons.places(one, trace)
    assert first < later
    for number, at in enumerate(steps[:2]):
        made = lessons.page(one, number, trace)
        assert 1 < len(made.ask.choices) <= 8
        hidden, shown_at = lessons.shown(one, number, trace)
        assert shown_at == at and not hidden.steps[-1].emitted and len(hidden.steps) == shown_at + 1
