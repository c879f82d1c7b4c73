"""The Image tab without a browser: what it refuses, what it asks for, and live runs on tiny models, stopped ones too."""

import base64
import threading
from dataclasses import replace
from itertools import count

import gradio as gr
import pytest

from specviz.errors import BadInput
from specviz.models.image import prompts as image_words
from specviz.models.image.image import LoadedImage
from specviz.pipeline import image
from specviz.prompts import table
from specviz.targets.image import ImageSession
from specviz.trace import store
from specviz.training.families import emoji
from specviz.ui import app_state, settings
from specviz.ui.access import Caller
from specviz.ui.archive import MINE
from specviz.ui.tabs import events, request_form
from specviz.ui.tabs.request_form import FormState
from specviz.ui.tabs.run_tab import ImageTab
from specviz.ui.widgets import examples
from tests.support.fakes.ui import changed
from tests.support.traces.image_runs import GRID, tiny_models

SESSION = "somebody"


def asked(prompt="red apple", method="lantern_pp", own=None, **basics):
    basic_form, advanced = request_form.forms(settings.Settings(), modality="image")
    forms = (changed(basic_form, **basics), changed(advanced, baseline=False), request_form.method_answer(method, own or {}))
    return FormState(method, "emoji-64", prompt, *forms, modality="image")


@pytest.fixture
def page():
    return app_state.make(replace(settings.Settings(), any_model=False))


def made(wanted):
    return request_form.request(wanted, settings.Settings(any_model=False))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (asked(prompt="   "), "The prompt is empty"),
        (asked(prompt="x" * 10_000), "10,000 characters"),
        (asked(guidance=-3), "guidance is -3"),
        (asked(own={"factor": float("nan")}), "factor is nan"),
        (asked(own={"factor": 0.5}), "number from 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_control_that_is_wrong(wanted, said):
    with pytest.raises(BadInput) as caught:
        made(wanted)
    assert said.lower() in str(caught.value).lower()


def test_a_request_carries_every_control():
    found = made(asked(own={"factor": 3.0}, temperature=0.7, guidance=4.0, seed=11))
    assert (found.temperature, found.guidance, found.seed, found.parameters.factor) == (0.7, 4.0, 11, 3.0)
    assert made(asked()).guidance is None and made(asked()).temperature == 1.0


def run(page, wanted, stop_after=None):
    """The last trace that the tab shows of a run, and what its banners said."""
    with gr.Blocks(), gr.Tab() as opened:
        tab = ImageTab(page, opened)
    trace, said = None, []
    for updates in tab.running(Caller(SESSION), "", [], *(getattr(wanted, name) for name in tab.controls)):
        name, banner = updates.get(tab.run_name), updates.get(tab.banner)
        said += [banner.value] if banner and banner.value else []
        trace = page.archive.trace(name) if name and tab.explanation in updates else trace
        if stop_after is not None and name:
            while len(page.archive.store.lines(name.removeprefix(MINE))) < stop_after:
                threading.Event().wait(0.01)
            events.stop(page, SESSION)
    return trace, said


def test_a_live_run_brings_the_picture_step_by_step_and_whole_at_the_end(page):
    with tiny_models():
        trace, said = run(page, asked())
    assert trace.end.reason == "budget" and len(trace.end.output_ids) == GRID * GRID
    assert base64.b64decode(trace.end.picture).startswith(b"\x89PNG")
    bands = [note.data for step in trace.steps for note in step.notes if note.type == "canvas"]
    assert {row for band in bands for row in range(band["row"], band["row"] + band["rows"])} == set(range(GRID))
    assert not said


def test_a_large_picture_is_decoded_only_when_it_is_done(page, monkeypatch):
    """Decoding one of many pixels every row would take longer than drawing it."""
    monkeypatch.setattr(image, "LIVE_SIDE", GRID - 1)
    with tiny_models():
        trace, _ = run(page, asked())
    assert not any(note.type == "canvas" for step in trace.steps for note in step.notes)
    assert base64.b64decode(trace.end.picture).startswith(b"\x89PNG")


def test_a_stopped_run_keeps_its_partial_picture_and_trace(page, monkeypatch):
    stopped, passes = threading.Event(), count()
    score, stop = ImageSession.score, events.stop

    def waiting(session, tree):
        """The picture is not drawn to its end before anybody can stop it."""
        assert next(passes) < GRID or stopped.wait(60)
        return score(session, tree)

    def told(*given):
        answer = stop(*given)
        stopped.set()
        return answer

    monkeypatch.setattr(ImageSession, "score", waiting)
    monkeypatch.setattr(events, "stop", told)
    with tiny_models():
        trace, _ = run(page, asked(method="autoregressive"), stop_after=4)
    assert trace.end.reason == "cancelled"
    assert 0 < len(trace.end.output_ids) < GRID * GRID
    assert base64.b64decode(trace.end.picture).startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_prompt_too_long_for_the_model_is_said_and_what_was_not_read_is_shown(page):
    with tiny_models():
        trace, _ = run(page, asked(prompt="a very long wish for a very red apple on a tree"))
    assert any("was not read" in word for word in trace.run.warnings)


def test_weights_that_are_missing_are_told_with_the_way_to_make_them(page, monkeypatch):
    from pathlib import Path

    from specviz.models.image import load

    monkeypatch.setattr(load, "WEIGHTS", Path("nowhere"))
    _, said = run(page, asked())
    assert "python -m specviz train" in said[-1]


@pytest.mark.spread(2)
@pytest.mark.parametrize(("broken_at", "decided"), [(2 * GRID, 2 * GRID), (GRID * GRID, GRID * GRID), (1, GRID)])
@pytest.mark.parametrize(("fault", "reason"), [(RuntimeError("the decoder broke"), "error"), (MemoryError(), "out_of_memory")])
def test_a_decoder_that_fails_ends_the_run_with_its_reason_and_keeps_the_steps(
    page, monkeypatch, broken_at, decided, fault, reason
):
    """In the middle of a run, at the last row only, or from the first finished row on."""
    decode = LoadedImage.picture

    def broken(loaded, codes):
        if len(codes) >= broken_at:
            raise fault
        return decode(loaded, codes)

    with tiny_models():
        monkeypatch.setattr(LoadedImage, "picture", broken)
        trace, _ = run(page, asked(method="autoregressive"))
    assert (trace.end.reason, trace.end.picture) == (reason, "")
    assert trace.end.message and (reason != "error" or "the decoder broke" in trace.end.message)
    assert len(trace.end.output_ids) == decided == sum(len(step.emitted) for step in trace.steps)
    store.read(store.text(trace))


# Label, code point and group of a concept, as the names that training reads have them.
CONCEPTS = {
    "red heart": ("2764", 0), "grinning face": ("1f600", 0), "red apple": ("1f34e", 4), "sunflower": ("1f33b", 3),
    "astonished face": ("1f632", 0), "tiger": ("1f405", 3), "mushroom": ("1f344", 3), "doughnut": ("1f369", 4),
}  # fmt: skip


def offered(title):
    """The examples under a title, each split into its parts: label, style, ground."""
    (group,) = [one for one in examples.groups("image") if one["kind"] == title]
    return [example["prompt"].split(", ") for example in group["examples"]]


@pytest.mark.parametrize(("title", "held_out"), [("Seen in training", False), ("Held out of training", True)])
def test_the_examples_are_what_they_are_said_to_be(title, held_out):
    for label, style, *ground in offered(title):
        code, group = CONCEPTS[label]
        concept = emoji.Concept(code, label, (), group, {})
        assert emoji.drawable(concept) and concept.held_out == held_out, label
        assert style.removesuffix(" style") in emoji.STYLES
        assert all(one.removeprefix("on ") in emoji.GROUNDS for one in ground)
        assert bool(image_words.reading("emoji-64", ", ".join((label, style, *ground)))[1]) == (held_out and label != "tiger")


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("prompt", "named", "left_out"),
    [
        ("zxqv blorp", ["any word of this prompt: “zxqv”, “blorp”"], []),
        ("red zxqv, noto style", ["these words of the prompt: “zxqv”"], ["“red”", "“noto”"]),
        ("owl", None, []),
        ("yellow star, noto style", ["the words of this prompt, but no picture with all of them"], []),
        ("a red apple on a car, twemoji style", ["these words of the prompt: “car”"], []),
        ("red heart, noto style, on yellow", None, []),
        ("RED Apple, noto style", None, []),
        ("12", None, []),
    ],
)
def test_words_that_no_learned_picture_was_asked_for_by_are_named(
    prompt, named, left_out
):  # fmt: skip
    text, found = image_words.reading("emoji-64", prompt)
    assert text == prompt
    assert bool(found) == (named is not None)
    assert all(part in found for part in named or []) and not any(part in found for part in left_out)


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("prompt", "read", "doubt"),
    [
        ("owl, twemoji style", None, ""),
        ("owl, twemoji style, on blue", "owl, twemoji style", "“owl”, the nearest picture"),
        ("owl, noto style", "owl, twemoji style", "“owl”"),
        ("two owls on a spaceship", "owl, twemoji style", "“owl”"),
        ("a ladybird on blue", "lady beetle, twemoji style", "“lady beetle”, the nearest picture"),
        ("two sunflwers", "sunflower, twemoji style", "“sunflower”, the nearest by spelling"),
        ("a photo of my grandmother", "robot, twemoji style", "knows no word of this prompt"),
        ("a table", "robot, twemoji style", "knows no word of this prompt"),
        ("the 🦉", "the owl", ""),
        ("❤️", "red heart", ""),
        ("a dog", "dog face, twemoji style", "“dog face”, the nearest picture"),
        ("a blue circle left of a fox, on a pink ground", "fox, twemoji style", "“fox”, the nearest picture"),
        ("狮子", "robot, twemoji style", "knows no word of this prompt"),
        ("", None, ""),
        ("on blue", None, "no picture without a thing"),
    ],
)
def test_a_model_that_knows_names_reads_other_words_as_the_nearest_one(prompt, read, doubt):
    text, found = image_words.reading("sprites-32", prompt)
    assert text == (read or prompt) and (doubt in found if doubt else not found)


def test_nine_in_ten_descriptions_in_other_words_are_read_as_what_they_describe():
    read = {name: image_words.reading("sprites-32", words)[0].startswith(name) for words, name in table("sprites").items()}
    assert sum(read.values()) >= 0.9 * len(read)
