"""Files that are valid and made to keep a page busy: each is drawn, or said to be too much; the page goes on answering."""

import json

import pytest

pytest.importorskip("playwright")


from specviz.trace import store
from specviz.trace.notes.verdicts import LocalVerificationNote
from specviz.viewer import bundle
from tests.support.pages.stage import PATIENCE, PROJECTOR
from tests.support.traces.recordings import noted
from tests.support.viewer import cases

pytestmark = pytest.mark.browser

VISIT = """(text) => {
  Object.assign(window, { faults: [], visited: 0, done: false });
  setTimeout(() => { handle.update(text); handle.stage.set({ tab: "method" }); step(0); });
  const step = (at) => {
    if (at > handle.stage.last) return void (window.done = true);
    try {
      handle.go(at);
      handle.flush();
      const slider = document.querySelector(".sv-scrubber input");
      if (slider) Object.assign(slider, { value: slider.max }).dispatchEvent(new Event("input"));
    } catch (fault) { faults.push(`step ${at}: ${fault.stack}`); }
    window.visited = at + 1;
    setTimeout(() => step(at + 1));
  };
}"""


@pytest.fixture(scope="module")
def page(browser):
    """A page with the stage, which is shown one file after the other."""
    page = browser.new_page(viewport=PROJECTOR)
    page.set_content('<main id="stage" style="height: 700px"></main>')
    page.add_script_tag(content=bundle.script())
    page.evaluate("window.handle = SpecvizViewer.mount(document.getElementById('stage'), { text: '', autoplay: false })")
    yield page
    page.close()


@pytest.fixture
def drawn(page):
    """``drawn(records)`` shows every step of a trace and comes back once the page has answered for each."""

    def visit(records):
        page.evaluate(VISIT, cases.text(records))
        page.wait_for_function("window.done", timeout=2000 * PATIENCE)
        assert page.evaluate("window.faults") == []
        return page

    return visit


def picture_step(note, cells=4, grid=(0, 0)):
    """A row of codes, all kept, with a note."""
    nodes = [cases.node(-1, "#0", "root")]
    for place in range(cells):
        nodes.append([*cases.node(place, f"#{place}", "accepted", None, 0.5), [grid[0], grid[1] + place]])
    return cases.step(0, nodes, list(range(1, cells + 1)), None, notes=[note])


def valid(records):
    """The records of a file, once the format's own checks have found it good."""
    store.read("\n".join(json.dumps(one) for one in records))
    return records


def image_run(*grid):
    return cases.run(modality="image", grid=list(grid), exactness="relaxed")


def waves(*each, island):
    """A note of local verification of four codes, whose third one failed."""
    note = LocalVerificationNote([0.5] * 4, 0.1, 4, 1, True, [3], [island], each, 1 + max(each)).to_note()
    return {"type": note.type, **note.data}


@pytest.mark.parametrize("wave", [1_000_000_000, 9_007_199_254_740_993, 5, -1])
def test_islands_of_more_waves_than_cells_are_listed_as_they_are(drawn, wave):
    page = drawn(valid([image_run(2, 2), picture_step(waves(0, 0, wave, 0, island=(3,)))]))
    assert "more than a page can draw" in page.inner_text(".sv-note") and "waves" in page.inner_text(".sv-note")


def test_a_story_of_too_many_parts_is_listed_as_it_is(drawn):
    note = {
        "type": "overlap",
        "positions": [{"node": 0, "tokens": [], "texts": ["a"] * 9000, "p": [0.1], "q": [0.1], "overlap": 0.1}],
    }
    page = drawn(valid([cases.run(), picture_step(note)]))
    assert page.locator(".sv-note *").count() < 4100


def test_a_picture_too_large_to_draw_is_said_and_the_steps_are_shown(drawn):
    page = drawn(valid([image_run(65535, 65535), picture_step({"type": "x"}, grid=(65535, 65000))]))
    assert "65535 × 65535 codes, which is more than a page can draw" in page.inner_text(".sv-banners")
    assert page.locator(".sv-tree [data-id]").count() == 5


def test_a_code_outside_the_picture_has_no_cell(drawn):
    page = drawn(valid([image_run(2, 2), picture_step({"type": "x"}, grid=(65535, 65000))]))
    assert page.evaluate("handle.stage.panels.find((one) => one.cells).cells.length") == 0


def test_a_text_too_long_for_the_strip_ends_in_a_sentence(page):
    chain = [cases.node(-1, "r", "root"), *(cases.node(place, "word", "accepted") for place in range(500))]
    steps = [cases.step(index, chain, list(range(1, 501)), None) for index in range(20)]
    page.evaluate("(text) => { handle.update(text); handle.flush(); }", cases.text([cases.run(), *steps]))
    assert "10000 tokens are more than this strip can show" in page.inner_text(".sv-strip")
    assert page.locator(".sv-token").count() <= 8000


def leaves(value, change):
    """A copy of a note's data with every number changed."""
    if isinstance(value, dict):
        return {name: one if name == "type" else leaves(one, change) for name, one in value.items()}
    if isinstance(value, list):
        return [leaves(one, change) for one in value]
    return change(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def worse(note):
    """Notes of the same type: its numbers beyond all bounds, all at once and field by field, and its lists much longer."""
    for number in (1e9, 2**53, 1e308, -1e308):
        yield leaves(note, lambda _, number=number: number)
    for name, value in note.items():
        yield from ({**note, name: leaves(value, lambda _, number=number: number)} for number in (1e9, 1e308) if name != "type")
        if isinstance(value, list) and value:
            yield {**note, name: (value * (400 // len(value) + 1))[:400]}
            yield {**note, name: [None, {}, [], "x", *value]}


def test_no_number_in_a_note_keeps_the_page_from_answering(drawn):
    for kind, (run, step) in noted().items():
        note = next(one for one in step["notes"] if one["type"] == kind)
        steps = [{**step, "seq": at + 1, "index": at, "notes": [made]} for at, made in enumerate(worse(note))]
        assert drawn([{**run, "seq": 0}, *steps]).evaluate("visited") == len(steps), kind
