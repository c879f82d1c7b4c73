// @ts-check
// Scrubber over the events of a step: a slider, a button that plays them, and the picture of the event that it points to.
import * as dom from "./dom.js";

const PACE = 800; // milliseconds per event

/** Index of the scrubber called `name` among `moments`: where it was left, if this step has such a moment. @param {Stage} stage @param {string} name */
export function place(stage, name, moments, first) {
  const at = moments.findIndex((moment) => moment.key === stage.moments[name]);
  return at >= 0 ? at : Math.max(0, Math.min(first, moments.length - 1));
}

/**
 * `moments` are {key, label}; `draw(moment, at)` makes the picture of one. `first` is its index until
 * it is moved. The main tree follows: a note may have an overlay that looks up where the scrubber is.
 * @param {Stage} stage @param {string} name
 */
export function make(stage, name, moments, draw, first = moments.length - 1) {
  const view = dom.h("div", { class: "sv-scrubber-view" });
  const slider = dom.h("input", { type: "range", min: 0, max: moments.length - 1, "aria-label": "Event" });
  const label = dom.h("b", { class: "sv-scrubber-label" });
  const play = dom.button("", "Play this step", () => toggle(), { class: "sv-scrubber-play" });
  let timer = 0;
  const at = () => place(stage, name, moments, first);

  function show() {
    const moment = moments[at()];
    slider.value = at();
    slider.setAttribute("aria-valuetext", moment.label);
    dom.say(label, moment.label);
    view.replaceChildren(dom.withinBudget(() => draw(moment, at())));
  }

  function go(to) {
    stage.moments[name] = moments[to].key;
    show();
    stage.touch("overlay");
  }

  function updateButton() {
    play.replaceChildren(dom.icon(timer ? "pause" : "play"));
    play.setAttribute("aria-label", timer ? "Pause" : "Play this step");
  }

  function next() {
    // Gone from the page: another step or another pane has taken its place.
    if (!view.isConnected || at() >= moments.length - 1) return stop();
    go(at() + 1);
    timer = setTimeout(next, PACE);
    return undefined;
  }

  function stop() {
    clearTimeout(timer);
    timer = 0;
    updateButton();
  }

  function toggle() {
    if (timer) return stop();
    stage.player.pause();
    if (at() >= moments.length - 1) go(0);
    timer = setTimeout(next, PACE);
    return updateButton();
  }

  slider.addEventListener("input", () => {
    stop();
    go(Number(slider.value));
  });
  updateButton();
  show();
  const control = dom.h("div", { class: "sv-scrubber" }, play, slider, label);
  return dom.h("div", {}, moments.length > 1 ? control : null, view);
}
