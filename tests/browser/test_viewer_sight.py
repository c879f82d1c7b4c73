"""What is in sight in a real browser: each step's words of every recording; a picture's patches, who is shown which token."""

import pytest
from msgspec.structs import replace

pytest.importorskip("playwright")


from specviz.trace import store
from specviz.trace.schema import Note
from tests.support.traces.recordings import RECORDINGS, beginning, run_line
from tests.support.viewer import cases

pytestmark = pytest.mark.browser

GRID, FIRST = 8, 1


WRITTEN = [path for path in RECORDINGS if run_line(path)["modality"] != "image"]
# The steps out of sight, on the way forward and on the way back. Of most runs the strip alone is drawn, which scrolls itself.
LOST = """([text, whole]) => {
  const lost = [], strip = document.querySelector(".sv-strip"), here = stage.stage, all = here.panels;
  stage.update(text);
  stage.flush();
  if (!whole) here.panels = all.filter((panel) => panel.text === strip);
  for (const lines of [3, 2]) {
    strip.style.setProperty("--sv-lines", lines);
    here.touch("size");
    for (const back of [false, true]) {
      for (let at = 0; at <= here.last; at += 1) {
        const step = back ? here.last - at : at;
        here.go(step);
        here.flush();
        const frame = document.querySelector(".sv-current-step").getBoundingClientRect();
        const seen = strip.getBoundingClientRect();
        const above = frame.top < seen.top - 1, below = frame.bottom > seen.bottom + 1;
        if (frame.height && (above || below)) lost.push([lines, back, step]);
      }
    }
  }
  here.panels = all;
  return [here.last, lost];
}"""


def opened(show, trace, note, size=None):
    tab = show(store.text(trace), size=size)
    tab.run("(selectedNote) => { stage.stage.set({ tab: 'method', selectedNote }); stage.flush(); }", note)
    return tab


def without_words(trace, unseen):
    """The run, its drafter not shown these words either."""

    def blinded(note):
        return Note(note.type, {**note.data, "unseen": unseen}) if note.type == "visual_tokens" else note

    steps = tuple(replace(step, notes=tuple(map(blinded, step.notes))) for step in trace.steps)
    return replace(trace, steps=steps)


def test_the_words_of_the_shown_step_are_whole_in_sight_whichever_way_one_goes(show):
    """Also where a race leaves the strip two lines."""
    tab = show()
    for path in WRITTEN:
        last, lost = tab.run(LOST, [store.text(store.read(path)), path == WRITTEN[-1]])
        assert last > 0 and lost == [], path.name


def test_an_empty_line_does_not_stand_above_the_text(show):
    tab = show(cases.trace(cases.chain(0, length=5, kept=3), cases.bushy(1)))
    strip, head = (tab.page.locator(f".sv-{name}").bounding_box() for name in ("strip", "head"))
    assert strip["y"] - head["y"] - head["height"] < 14


def test_hidden_tokens_look_different_from_those_that_are_shown(show):
    tab = opened(show, without_words(beginning("dream"), [[66, 2]]), "visual_tokens")
    look = """(which) => { const style = getComputedStyle(document.querySelectorAll('.sv-note .sv-cells')[1]
      .querySelector(which)); return [style.backgroundColor, style.borderTopStyle, style.color]; }"""
    for kind in (".sv-patch-cell", ".sv-word-cell"):
        shown, hidden = (tab.run(look, kind + state) for state in (":not(.sv-hidden-cell)", ".sv-hidden-cell"))
        assert shown != hidden and hidden[1] == "dotted" and hidden[0] == "rgba(0, 0, 0, 0)"
