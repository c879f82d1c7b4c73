"""Every note of every recording is drawn, read without scrolling at a projector's size, and not cut off on a phone."""

import json

import pytest

pytest.importorskip("playwright")

from specviz.trace import store
from tests.support.pages.stage import PHONE, PROJECTOR
from tests.support.traces.recordings import RECORDINGS, name

pytestmark = pytest.mark.browser

# The least that the app leaves of a projector's window for the stage once a race is over, and of a large window.
IN_THE_APP = {"width": 1028, "height": 526}
IN_A_LARGE_APP = {"width": 1308, "height": 820}
SMALLEST = 11

# Each kind of note at some steps of the run and at every moment of its own scrubber: [note, step, moment, what is wrong].
CHECK = """async ([text, steps, smallest, down]) => {
  stage.update(text);
  stage.flush();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const here = stage.stage, wrong = [], kinds = new Map();
  here.trace.steps.forEach((step, at) => step.notes.forEach(({ type }) => kinds.set(type, [...(kinds.get(type) || []), at])));
  const look = (pane, ...where) => {
    const say = (what) => wrong.push([...where, what]);
    const frame = pane.getBoundingClientRect();
    if (pane.querySelector(".sv-raw-note")) say("is listed and not drawn");
    if (pane.innerHTML.includes("NaN")) say("a number that is none");
    if (down && pane.scrollHeight > pane.clientHeight) say(`${pane.scrollHeight - pane.clientHeight} pixels below the edge`);
    for (const part of pane.querySelectorAll("*")) {
      if (part.closest("details:not([open]) > :not(summary)")) continue;
      const box = part.getBoundingClientRect(), style = getComputedStyle(part);
      if (!box.width || !box.height || (style.clipPath !== "none")) continue;
      if (part.scrollWidth > part.clientWidth + 1 && /auto|scroll|hidden/.test(style.overflowX) && part.clientWidth)
        if (style.textOverflow !== "ellipsis") say(`${part.className} scrolls sideways`);
      if (/rect|circle/.test(part.tagName) && box.right > frame.right + 1) say(`a ${part.tagName} is cut at the side`);
      const written = [...part.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
      if (!written) continue;
      if (box.left < frame.left - 1 || box.right > frame.right + 1) say(`“${part.textContent.slice(0, 20)}” is cut at the side`);
      if (parseFloat(style.fontSize) < smallest - 0.01) say(`“${part.textContent.slice(0, 20)}” is ${style.fontSize}`);
    }
  };
  for (const [type, at] of kinds) {
    const some = Array.from({ length: steps }, (_, one) => at[Math.round((one * (at.length - 1)) / Math.max(1, steps - 1))]);
    for (const step of new Set(some)) {
      here.go(step);
      here.set({ tab: "method", selectedNote: type, picked: true });
      here.flush();
      const pane = here.root.querySelector(".sv-pane:not([hidden])");
      const slider = pane.querySelector(".sv-scrubber input");
      look(pane, type, step + 1, "");
      if (!slider) continue;
      for (let moment = 0; moment <= Number(slider.max); moment += 1) {
        slider.value = moment;
        slider.dispatchEvent(new Event("input"));
        look(pane, type, step + 1, slider.getAttribute("aria-valuetext"));
      }
      here.moments = {};
    }
  }
  return wrong;
}"""


def test_notes_need_no_scrolling_and_are_not_cut_off(show):
    tab, wrong = show(), []
    texts = {name(path): store.text(store.read(path)) for path in RECORDINGS}
    windows = {"projector": (PROJECTOR, 1), "app": (IN_THE_APP, 2), "large app": (IN_A_LARGE_APP, 1), "phone": (PHONE, 2)}
    for window, (size, steps) in windows.items():
        tab.page.set_viewport_size(size)
        height = f"{size['height']}px" if "app" in window else ""
        tab.run("(height) => document.body.style.setProperty('--specviz-height', height)", height)
        tab.until(f"stage.stage.width === {size['width']}")
        tab.until(f"!{json.dumps(height)} || stage.stage.height === {size['height']}")
        for recording, text in texts.items():
            found = tab.run(CHECK, [text, steps, SMALLEST, window != "phone"])
            wrong += [f"{window}: {recording}, {note}, step {step} {moment}: {what}" for note, step, moment, what in found]
    assert not wrong, "\n".join(wrong[:20])
