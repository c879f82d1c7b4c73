"""Class mode in the browser: a projector, two phones, a lesson's question from its opening to the table of answers."""

import os
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from playwright.sync_api import expect

from specviz.ui.app_state import make
from specviz.ui.classroom import server
from specviz.ui.settings import Settings
from tests.support import qr
from tests.support.fakes.ui import FakeEngine, gallery
from tests.support.pages import stage as stage_page
from tests.support.pages.app import AppPage, served

pytestmark = pytest.mark.browser

LESSON = "?tab=learn&lesson=03-chance&at=2"
MODULES = """() => { const svg = document.querySelector('.sp-class-join svg'), size = svg.viewBox.baseVal.width - 8;
  const rows = Array.from({ length: size }, () => Array(size).fill('0'));
  for (const [, x, y] of svg.querySelector('path').getAttribute('d').matchAll(/M(\\d+) (\\d+)h/g)) rows[y][x] = '1';
  return rows.map((row) => row.join('')); }"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """An app that others can reach, as far as it knows: its address here is this machine's own."""
    folder = gallery(tmp_path_factory.mktemp("app") / "traces", ("token_recycling", "speculative_sampling"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "is_loopback", lambda name: False)
        with served(make(Settings(traces=folder, private=False), FakeEngine())) as found:
            yield found


@pytest.fixture
def projector(browser, url):
    with closing(AppPage(browser, url, LESSON, reduced_motion="reduce")) as found:
        found.button("Class mode").click()
        expect(found.page.locator(".sp-class-join")).to_be_visible()
        yield found


def link(projector):
    return "http://" + str(projector.page.locator(".sp-class-link").inner_text())


def joined(browser, projector, **context):
    phone = stage_page.patient(browser.new_context(viewport=stage_page.PHONE, has_touch=True, **context).new_page())
    phone.goto(link(projector))
    return phone


def broken(page):
    """What axe finds to be serious, whatever its kind."""
    if not (axe := os.environ.get("AXE_JS", "")):
        pytest.skip("AXE_JS names no axe.min.js")
    page.evaluate(Path(axe).read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [
        (one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found if one["impact"] in ("serious", "critical")
    ]


def test_the_code_on_the_projector_leads_to_the_class(projector):
    assert qr.text(projector.page.evaluate(MODULES)) == link(projector)


def test_phones_answer_and_the_teacher_sets_the_pace(browser, projector, tmp_path):
    phones = [joined(browser, projector) for _ in range(2)]
    expect(projector.page.locator(".sp-class-here")).to_have_text("2 phones here")
    projector.button("Show the lesson").click()
    expect(phones[0].locator("#status")).to_contain_text("A question comes next")
    assert projector.page.get_by_role("radio").locator("visible=true").count() == 0, "the class predicts, not the teacher"
    projector.button("Open the question").click()
    phones[0].locator("#name").fill("Ada")
    phones[0].get_by_label("Half of the time").tap()
    phones[1].get_by_label("Never").tap()
    expect(projector.page.locator(".sp-class-bars b")).to_have_text(["0", "1", "0", "1"])
    phones[1].get_by_label("Half of the time").tap()
    expect(projector.page.locator(".sp-class-bars b")).to_have_text(["0", "2", "0", "0"])
    projector.button("Close the question").click()
    expect(phones[0].get_by_label("Always")).to_be_disabled()
    expect(phones[0].locator(".right")).to_have_count(0)
    projector.button("Reveal").click()
    expect(phones[0].locator("#status")).to_have_text("You were right.")
    expect(phones[0].locator(".right .count")).to_have_text("2 ✓")
    expect(projector.page.locator(".sp-class-bars .right span")).to_have_text("Half of the time")
    with projector.page.expect_download() as download:
        projector.button("Answers, CSV").click()
    download.value.save_as(tmp_path / "answers.csv")
    lines = (tmp_path / "answers.csv").read_text(encoding="utf-8-sig").splitlines()
    assert len(lines) == 3 and ",Half of the time,1,1,Ada," in lines[1] and ",Half of the time,1,2,," in lines[2]
    projector.button("Next").click()
    expect(phones[0].locator("#status")).to_contain_text("A question comes next")
    projector.button("End class").click()
    projector.button("Forget all answers and end?").click()
    expect(phones[0].locator("#status")).to_have_text(server.GONE)
    assert not phones[0].context.cookies()
    assert projector.page.get_by_role("radio").locator("visible=true").count() > 1


def test_a_class_survives_a_reload_of_projector_and_phone(browser, projector):
    phone, code = joined(browser, projector), link(projector)
    projector.page.keyboard.press("Tab")
    projector.page.keyboard.press("Enter")
    expect(projector.button("Open the question")).to_be_focused()
    projector.page.keyboard.press("Enter")
    phone.get_by_label("Never").tap()
    expect(phone.locator("#status")).to_contain_text("Sent.")
    phone.reload()
    phone.get_by_label("Always").tap()
    expect(phone.locator("#status")).to_contain_text("Sent.")
    projector.page.reload()
    expect(projector.page.locator(".sp-class-link")).to_be_visible()
    assert link(projector) == code
    projector.page.keyboard.press("Escape")
    expect(projector.page.locator(".sp-class-join")).to_be_hidden()
    projector.button("Open the question").click()
    expect(projector.page.locator(".sp-class-bars b")).to_have_text(["1", "0", "0", "0"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_on_projector_and_phone_is_hard_to_use(browser, projector, scheme):
    projector.page.emulate_media(color_scheme=scheme)
    phone = joined(browser, projector, color_scheme=scheme)
    assert broken(projector.page) == []
    projector.button("Show the lesson").click()
    projector.button("Open the question").click()
    phone.get_by_label("Never").tap()
    projector.button("Reveal").click()
    expect(phone.locator(".right")).to_have_count(1)
    assert broken(projector.page) == [] and broken(phone) == []
    projector.page.set_viewport_size(stage_page.PHONE)
    projector.button("Show code").click()
    assert projector.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_an_app_for_this_machine_alone_says_how_to_share(browser, tmp_path):
    folder = gallery(tmp_path / "traces", ("speculative_sampling",))
    with served(make(Settings(traces=folder), FakeEngine())) as url, closing(AppPage(browser, url, LESSON)) as page:
        page.button("Class mode").click()
        expect(page.page.locator(".sp-class-said")).to_contain_text("GRADIO_SERVER_NAME=0.0.0.0")
        assert page.errors and all("400" in one for one in page.errors)
        page.errors.clear()
