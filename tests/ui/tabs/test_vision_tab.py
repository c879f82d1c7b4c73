"""The vision-language tab without a browser: pictures brought and taken, what is asked, and what a visitor never shares."""

import base64
import io

import gradio as gr
import pytest
from PIL import Image

from specviz.errors import BadInput
from specviz.models.vision.pictures import open_picture
from specviz.ui.settings import Settings
from specviz.ui.tabs import request_form
from specviz.ui.tabs.request_form import FormState
from specviz.ui.tabs.run_tab import VisionTab
from specviz.ui.widgets import examples as scene_shelf
from tests.support.fakes.ui import app
from tests.support.traces.recordings import beginning
from tests.support.traces.samples import lines


def png(size=(20, 10), mode="RGB"):
    out = io.BytesIO()
    Image.new(mode, size).save(out, "PNG")
    return out.getvalue()


def event(at):
    made = gr.EventData(None, {"at": at})
    return made


@pytest.fixture
def tab(tmp_path):
    shared = app(tmp_path)
    with gr.Blocks(), gr.Tab() as opened:
        return VisionTab(shared, opened)


def test_the_examples_are_small_pictures_with_questions():
    found = scene_shelf.scenes()
    assert len(found) >= 6
    for one in found:
        picture = open_picture(one.data)
        assert picture.image.size == (128, 128) and not picture.warnings
        assert one.question and one.label and len(one.data) < 20_000


def test_an_example_brings_its_question(tab):
    second = scene_shelf.scenes()[1]
    made = tab.take("", event(1))
    assert made[tab.picture] == second.data and made[tab.prompt] == second.question
    assert scene_shelf.address(second.data) in made[tab.preview]
    for strange in (-1, 99, "1", None, 1.5):
        assert list(tab.take("", event(strange))) == [tab.banner]


def test_an_upload_is_opened_with_care(tab, tmp_path):
    (tmp_path / "wide.png").write_bytes(png((3000, 1000)))
    made = tab.bring(str(tmp_path / "wide.png"))
    assert Image.open(io.BytesIO(made[tab.picture])).size == (768, 256)
    assert made[tab.banner]["visible"] is False if isinstance(made[tab.banner], dict) else not made[tab.banner].visible
    (tmp_path / "clear.png").write_bytes(png(mode="RGBA"))
    assert "white there" in str(tab.bring(str(tmp_path / "clear.png"))[tab.banner].value)


@pytest.mark.spread(1)
@pytest.mark.parametrize("data", [b"", b"GIF89a", b"<svg onload=alert(1)>", png()[:40]])
def test_what_is_no_picture_leaves_the_one_that_was_there(tab, tmp_path, data):
    (tmp_path / "bad.png").write_bytes(data)
    made = tab.bring(str(tmp_path / "bad.png"))
    assert list(made) == [tab.banner]
    assert 'role="alert"' in made[tab.banner].value and "<svg" not in made[tab.banner].value
    assert list(tab.bring(None)) == [tab.banner]


def ask(settings, picture, target="scenes-vlm", method="hivis"):
    forms = (*request_form.forms(settings), request_form.method_answer(method))
    return FormState(method, target, "What is there?", *forms, picture=picture, modality="vision_language")


def test_what_is_asked_holds_the_picture():
    settings = Settings()
    request = request_form.request(ask(settings, png()), settings)
    assert (request.method, request.target, request.image) == ("hivis", "scenes-vlm", png())
    assert request_form.request(ask(settings, None), settings).image is None


def test_the_picture_belongs_to_one_page(tab):
    assert isinstance(tab.picture, gr.State) and tab.picture in tab.request_controls


def test_a_recording_brings_its_picture_and_a_method_only_where_the_visitor_chose_none(tab, tmp_path):
    trace = beginning("dream", 4)
    name = f"mine:{tab.shared.archive.store.new(lines(trace))}"
    updates = tab.show(name, [("dream", name)], "a")
    (note,) = [note for note in trace.steps[0].notes if note.type == "picture"]
    assert updates[tab.picture] == base64.b64decode("".join(note.data["png"]))
    assert updates[tab.by_hand], "a run of this session has the visitor's picture"
    assert scene_shelf.address(updates[tab.picture]) in updates[tab.preview]
    for by_hand in (False, True):
        assert (tab.picture in tab.apply_limits(updates, "dream", "scenes-vlm", "", by_hand)) != by_hand


def test_a_folder_without_scenes_is_told(tmp_path):
    with pytest.raises(BadInput, match="restore them from the repository"):
        scene_shelf.scenes(tmp_path)
