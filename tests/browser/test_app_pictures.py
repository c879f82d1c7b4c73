"""The Image and the Vision-language tab as a visitor meets them: recorded runs play there, scenes are chosen by keyboard."""

import re

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from playwright.sync_api import expect

from specviz.ui.app_state import make
from specviz.ui.settings import Settings
from specviz.ui.widgets import examples as scene_shelf
from tests.support.fakes.ui import FakeEngine, gallery
from tests.support.pages.app import served

pytestmark = pytest.mark.browser

NAMES = ("token_recycling", "lantern_pp", "mulo_sd", "dream", "hivis")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = gallery(tmp_path_factory.mktemp("app") / "traces", NAMES)
    with served(make(Settings(traces=folder), FakeEngine())) as found:
        yield found


def test_the_image_tab_fits_a_projector_and_a_cell_leads_to_its_step(visitor):
    visitor.tab("Image")
    stage = "#sp-image-stage"
    visitor.until(f"{visitor.stage(stage)}.trace.end && {visitor.stage(stage)}.width > 0")
    visitor.until("String([document.documentElement.scrollHeight, document.documentElement.scrollWidth]) === '720,1280'")
    visitor.page.evaluate(f"{visitor.stage(stage)}.player.pause(); {visitor.stage(stage)}.go({visitor.stage(stage)}.last)")
    box = visitor.page.locator(f"{stage} .sv-picture-marks").bounding_box()
    assert box["width"] > 200 and box["y"] + box["height"] < 720
    visitor.page.mouse.click(box["x"] + 4, box["y"] + 4)
    visitor.until(f"{visitor.stage(stage)}.cursor === 0")


@pytest.mark.parametrize(("title", "prefix"), [("Vision-language", "sp-see"), ("Image", "sp-image")])
def test_a_live_run_reaches_the_stage_of_a_tab_opened_late_which_lists_it_after_a_reload(newcomer, title, prefix):
    stage = newcomer.stage(f"#{prefix}-stage")
    newcomer.tab(title)
    newcomer.until(f"{stage}.trace.end")
    newcomer.page.locator(f"#{prefix}-run-live").click()
    newcomer.until(f"{stage}.trace.mode === 'live' && {stage}.trace.end")
    (own, *_) = newcomer.options(f"#{prefix}-recording")
    newcomer.tab("Text")
    newcomer.page.reload()
    newcomer.until(f"{newcomer.stage()}.trace.end")
    newcomer.tab(title)
    expect(newcomer.page.locator(f"#{prefix}-recording option:checked")).to_have_text(own)
    newcomer.until(f"{stage}.trace.end && {stage}.feed.name.startsWith('mine:')")
    newcomer.errors.clear()  # Gradio's own, of the answers that a reload cuts off


def test_another_target_has_its_own_guidance_unless_the_visitor_chose_one(newcomer):
    newcomer.tab("Image")
    newcomer.until(f"{newcomer.stage('#sp-image-stage')}.trace.end")
    guidance = newcomer.page.locator("#sp-image-basics input[id$='-guidance']")
    expect(guidance).to_have_value("2")  # the recorded run's

    def choose(target):
        newcomer.page.locator("#sp-image-target input").click()
        newcomer.page.get_by_role("option", name=target).click()

    choose("Sprites, 32 pixels")
    expect(guidance).to_have_value("0")
    guidance.fill("3")
    choose("Emoji, 64 pixels")
    expect(newcomer.page.locator("#sp-image-target input")).to_have_value(re.compile("64 pixels"))
    expect(guidance).to_have_value("3")


def test_a_scene_is_chosen_by_keyboard_with_its_question(visitor):
    visitor.tab("Vision-language")
    chosen = scene_shelf.scenes()[2]
    shown = visitor.page.locator("#sp-see-preview img")
    before = shown.get_attribute("src")
    button = visitor.page.locator("#sp-scenes button").nth(1)
    button.focus()
    visitor.page.keyboard.press("Tab")
    visitor.page.keyboard.press("Enter")
    expect(visitor.page.locator("#sp-see-prompt textarea")).to_have_value(chosen.question)
    expect(shown).to_have_attribute("src", scene_shelf.address(chosen.data))
    assert before != scene_shelf.address(chosen.data)


def test_a_file_that_is_no_picture_is_refused_and_the_scene_stays(visitor):
    visitor.tab("Vision-language")
    before = visitor.page.locator("#sp-see-preview img").get_attribute("src")
    field = visitor.page.locator("#sp-see-upload-input, #sp-see-upload input[type=file], input[type=file][accept*='.png']").first
    field.set_input_files({"name": "scene.png", "mimeType": "image/png", "buffer": b"<svg onload=alert(1)>"})
    expect(visitor.page.locator(".sp-say-error").locator("visible=true")).to_be_visible()
    expect(visitor.page.locator("#sp-see-preview img")).to_have_attribute("src", before or "")
