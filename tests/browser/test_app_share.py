"""The Share menu in the browser: pictures of the step without the server, and a frame for other sites."""

import os
import re
import shutil
from contextlib import closing
from xml.etree import ElementTree

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from PIL import Image, ImageSequence
from playwright.sync_api import expect

from specviz.paths import ASSETS
from specviz.ui.app_state import make
from specviz.ui.settings import Settings
from tests.support.fakes.ui import FakeEngine, gallery
from tests.support.pages.app import AppPage, served

pytestmark = pytest.mark.browser

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = gallery(tmp_path_factory.mktemp("app") / "traces", ("token_recycling", "stand", "mulo_sd"))
    for file in [file for name in ("dream", "sprites") for file in (ASSETS / "traces").glob(f"{name}.*")]:
        shutil.copy(file, folder)
    with served(make(Settings(traces=folder), FakeEngine())) as found:
        yield found


@pytest.fixture(scope="module")
def visitor(browser, url):
    permissions = ["clipboard-read", "clipboard-write"]
    with closing(AppPage(browser, url, "?trace=stand&step=3", permissions=permissions, reduced_motion="reduce")) as found:
        found.until(f"{found.stage()}.feed.name === 'stand' && {found.stage()}.cursor === 2")
        found.button("Share").click()
        yield found


def saved(visitor, way, folder):
    with visitor.page.expect_download(timeout=120_000) as download:
        visitor.page.locator("#sp-sharing").get_by_role("button", name=way).click()
    expect(visitor.page.locator("#sp-linked")).to_contain_text(" kB.")
    download.value.save_as(folder / download.value.suggested_filename)
    return folder / download.value.suggested_filename


def test_the_picture_is_the_tree_on_the_stage_with_its_title_legend_and_looks(visitor, tmp_path):
    asked = []
    visitor.page.on("request", lambda request: asked.append(request.url))
    file = saved(visitor, "Picture, SVG", tmp_path)
    assert not [one for one in asked if not one.startswith("blob:")], "a picture asked the server"
    assert file.name == "stand-step-3.svg"
    root = ElementTree.parse(file).getroot()
    said = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert said[0].startswith("STAND on ") and said[1].startswith("Step 3 of ")
    nodes = visitor.page.locator("#sp-stage svg.sv-tree .sv-node text").all_text_contents()
    assert nodes and all(text in said for text in nodes)
    legend = visitor.page.locator("#sp-stage .sv-tree-card .sv-legend > span:not(.sv-legend-extra)").all_text_contents()
    assert legend and all(text in said for text in legend)
    whole = file.read_text(encoding="utf-8")
    assert "class=" not in whole and "var(" not in whole and "foreignObject" not in whole and "href" not in whole
    accepted = visitor.page.evaluate("getComputedStyle(document.querySelector('#sp-stage .sv-edge.sv-is-accepted')).stroke")
    assert any(f"stroke: {accepted}" in (path.get("style") or "") for path in root.iter(f"{SVG}path"))


def test_the_same_as_pixels_and_in_motion(visitor, tmp_path):
    assert saved(visitor, "Picture, PNG", tmp_path).read_bytes().startswith(b"\x89PNG")
    clip = saved(visitor, "Clip, WebM", tmp_path)
    assert clip.read_bytes().startswith(b"\x1a\x45\xdf\xa3") and clip.stat().st_size > 10_000
    assert visitor.run("cursor") == 2 and visitor.run("within") == 1


def test_the_race_of_the_stage_as_a_picture_and_a_clip(visitor, tmp_path):
    root = ElementTree.parse(saved(visitor, "Race, SVG", tmp_path)).getroot()
    said = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert "STAND" in said and sum(re.match(r"(\d+) of \1 ", words) is not None for words in said) == 2
    track, *bars = (float(one.get("width") or 0) for one in root.iter(f"{SVG}rect") if float(one.get("height") or 0) <= 6)
    assert len(bars) == 3 and max(bars) == track
    clip = saved(visitor, "Race, WebM", tmp_path)
    assert clip.read_bytes().startswith(b"\x1a\x45\xdf\xa3") and clip.stat().st_size > 10_000
    visitor.page.keyboard.press("Escape")
    visitor.tab("Methods")
    visitor.page.wait_for_selector(".svf h2")
    visitor.button("Share").click()
    ways = visitor.page.locator("#sp-sharing")
    expect(ways.get_by_role("button", name="Race, WebM")).to_be_disabled()  # this folder has no lanes
    expect(ways.get_by_role("button", name="Picture, SVG")).to_be_disabled()
    visitor.page.keyboard.press("Escape")
    visitor.tab("Text")
    visitor.button("Share").click()


def test_embed_code_frames_the_stage_at_its_step_with_nothing_that_runs(browser, visitor, url):
    visitor.page.locator("#sp-sharing").get_by_role("button", name="Copy embed code").click()
    expect(visitor.page.locator("#sp-linked")).to_have_text("Embed code copied.")
    code = visitor.page.evaluate("navigator.clipboard.readText()")
    assert re.fullmatch(r'<iframe src="[^"]*" title="STAND on [^"]*" [^<>]*sandbox="allow-scripts"[^<>]*></iframe>', code)
    with closing(browser.new_context(viewport={"width": 900, "height": 720})) as context:
        blog = context.new_page()
        errors = []
        blog.on("pageerror", lambda error: errors.append(str(error)))
        blog.set_content(f"<!doctype html><title>A blog</title><h1>A blog</h1>{code}")
        frame = blog.frame_locator("iframe")
        expect(frame.locator(".sv-tree-card h2")).to_contain_text("Step 3 of ")
        expect(frame.locator(".sv-title")).to_have_text("STAND")
        for name in ("Run live", "Share", "Stop"):
            expect(frame.get_by_role("button", name=name)).to_have_count(0)
        assert frame.locator("textarea, form, a[href]").count() == 0
        assert errors == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_menu_has_no_barriers(visitor, width):
    visitor.page.set_viewport_size({"width": width, "height": 800})
    expect(visitor.page.locator("#sp-sharing")).to_be_visible()
    box = visitor.page.locator("#sp-sharing").bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= width
    if not (axe := os.environ.get("AXE_JS", "")):
        pytest.skip("AXE_JS names no axe.min.js")
    visitor.page.add_script_tag(path=axe)
    for _ in ("light", "dark"):
        found = visitor.page.evaluate("axe.run('#sp-sharing', { resultTypes: ['violations'] })")["violations"]
        assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == []
        visitor.page.evaluate("document.querySelector('#sp-theme').click()")


def test_a_step_of_an_image_run_is_drawn_beside_what_is_painted_so_far(browser, url, tmp_path):
    with closing(AppPage(browser, url, "?trace=mulo_sd&step=2", reduced_motion="reduce")) as painter:
        painter.page.wait_for_selector("#sp-image-stage .sv-picture-marks path")
        painter.button("Share").click()
        root = ElementTree.parse(saved(painter, "Picture, SVG", tmp_path)).getroot()
        [painting] = root.findall(f"{SVG}image[@width='256']")
        assert str(painting.get("href")).startswith("data:image/png;base64,")
        assert saved(painter, "Picture, PNG", tmp_path).read_bytes().startswith(b"\x89PNG")


def test_a_step_about_a_picture_is_drawn_beside_it(browser, url, tmp_path):
    with closing(AppPage(browser, url, "?trace=dream&step=2", reduced_motion="reduce")) as asked:
        asked.page.wait_for_selector("#sp-see-stage svg.sv-tree .sv-node")
        asked.button("Share").click()
        root = ElementTree.parse(saved(asked, "Picture, SVG", tmp_path)).getroot()
        [picture] = root.findall(f"{SVG}image")
        assert str(picture.get("href")).startswith("data:image/png;base64,")
        tree = root.find(f"{SVG}svg")
        assert float(tree.get("x", "0")) >= float(picture.get("x", "0")) + float(picture.get("width", "0"))
        assert saved(asked, "Picture, PNG", tmp_path).read_bytes().startswith(b"\x89PNG")


def test_the_film_of_a_race_of_pictures_paints_them(browser, url, tmp_path):
    with closing(AppPage(browser, url, "?trace=sprites", reduced_motion="reduce")) as painter:
        painter.page.wait_for_selector("#sp-image-stage .sv-picture-marks path")
        painter.button("Share").click()
        pictures = ElementTree.parse(saved(painter, "Race, SVG", tmp_path)).getroot().findall(f"{SVG}image")
        assert pictures and all(str(one.get("href")).startswith("data:image/png;base64,") for one in pictures)
        with Image.open(saved(painter, "Race, GIF", tmp_path)) as moving:
            frames = [frame.convert("RGB").crop((24, 64, 216, 256)) for frame in ImageSequence.Iterator(moving)]
    colours = [len(frame.getcolors(192 * 192) or ()) for frame in frames]
    assert colours[0] == 1 and colours[-1] > 3, "the run's picture, from nothing to what it drew"
    assert len({frame.tobytes() for frame in frames}) > 5, "it grows"
