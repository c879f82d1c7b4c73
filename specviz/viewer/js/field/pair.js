// @ts-check
// Two trees at the same place of the text, each on a stage of its own that shows the tree alone.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import { Stage } from "../stage/stage.js";
import { stepOf, together } from "./lanes.js";

/** @typedef {import("./lanes.js").Lane} Lane */

/** @param {import("./clock.js").Field} field @param {() => void} close */
export function pair(field, close) {
  /** @type {Lane[]} */
  let lanes = [];
  /** @type {Stage[]} */
  let stages = [];
  /** @type {number[]} */
  let places = [];
  let at = 0;
  const range = /** @type {HTMLInputElement} */ (dom.h("input", { type: "range", min: 0, step: 1, "aria-label": "Position in the text" }));
  const words = dom.h("p", { class: "svf-words", role: "status" });
  const turn = (by) => () => seek(by > 0 ? places.find((place) => place > at) : places.findLast((place) => place < at));
  const earlier = dom.button("‹", "The last place where both begin a step", turn(-1), { class: "svf-box", "aria-label": "Earlier common place" });
  const later = dom.button("›", "The next place where both begin a step", turn(1), { class: "svf-box", "aria-label": "Next common place" });
  const head = dom.h("div", { class: "svf-pair-head" }, earlier, range, later, words, dom.button("✕", "Close the trees", close, { class: "svf-box", "aria-label": "Close the trees" }));
  const sides = dom.h("div", { class: "svf-sides" });
  const element = dom.h("section", { class: "svf-pair", "aria-label": "Two trees at the same place", hidden: true }, head, sides);

  /** @param {number | undefined} place */
  function seek(place) {
    if (place === undefined) return;
    at = place;
    range.value = String(at);
    const text = lanes[0].steps.flatMap(([, , pieces]) => pieces).slice(0, at).join("");
    const both = places.includes(at) ? "Both draft here, after " : "After ";
    dom.say(words, at ? `${both}“…${format.visible(text.slice(-34))}”` : "Both draft the first token");
    earlier.disabled = !places.some((one) => one < at);
    later.disabled = !places.some((one) => one > at);
    stages.forEach((stage, side) => stage.go(stepOf(lanes[side].upto, at)));
  }

  /** Show the trees of two lanes; of fewer, say what to do. @param {(Lane | undefined)[]} chosen */
  async function show(chosen) {
    const wanted = chosen.flatMap((lane) => lane || []);
    element.hidden = !wanted.length;
    if (wanted.length === 2 && wanted.every((lane, side) => lane === lanes[side] && stages[side])) return;
    for (const stage of stages) stage.destroy();
    [lanes, stages] = [wanted, []];
    head.hidden = wanted.length < 2;
    sides.replaceChildren(dom.h("p", { class: "svf-hint" }, wanted.length < 2 ? "Tick a second method to see both trees at the same place of the text." : "Fetching both runs …"));
    if (wanted.length < 2) return;
    let texts;
    try {
      texts = await Promise.all(wanted.map(({ name }) => field.lines(name)));
    } catch (error) {
      if (lanes === wanted) sides.replaceChildren(dom.h("p", { class: "svf-hint" }, Object(error).message));
      return;
    }
    if (lanes !== wanted) return;
    const hosts = wanted.map(({ title, speedup }) => dom.h("div", { class: "svf-side" }, dom.h("h3", {}, title, speedup ? ` · ${speedup.toFixed(2)}×` : ""), dom.h("div", { class: "svf-host" })));
    sides.replaceChildren(...hosts);
    stages = texts.map((text, side) => {
      const stage = new Stage(/** @type {HTMLElement} */ (hosts[side].lastChild), { autoplay: false });
      stage.root.setAttribute("aria-label", `Tree of ${wanted[side].title}`);
      stage.feed.accept(text);
      return stage;
    });
    places = together(wanted[0], wanted[1]);
    range.max = String(Math.min(...wanted.map(({ upto }) => upto[upto.length - 1])) - 1);
    // Begin where the two differ most.
    const apart = (/** @type {number} */ place) => Math.abs(wanted.map(({ upto }) => upto[stepOf(upto, place)]).reduce((mine, theirs) => mine - theirs));
    seek(places.reduce((best, place) => (apart(place) > apart(best) ? place : best)));
  }

  range.addEventListener("input", () => seek(Number(range.value)));
  return { element, show };
}
