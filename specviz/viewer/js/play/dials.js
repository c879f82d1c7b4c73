// @ts-check
// Controls of the Play tab: sliders, chips, things to drag in a drawing, and a drawing that is as large as its place.
import * as dom from "../kit/dom.js";

/** @param {Element} element @param {Record<string, any>} attributes */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const text = typeof value === "number" ? String(Math.round(value * 100) / 100) : value;
    if (text === null || text === false) element.removeAttribute(name);
    else if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  }
}

/** @param {number} value */
export const two = (value) => value.toFixed(2);
/** @param {number} value @param {number} low @param {number} high */
export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** An SVG element. @param {string} tag @param {string} kind @param {any[]} children */
export const mark = (tag, kind, ...children) => dom.s(tag, { class: kind }, ...children);

/** Words at a point. @param {SVGElement} element @param {number} x @param {number} y @param {string} words */
export function place(element, x, y, words) {
  set(element, { x, y });
  dom.say(element, words);
}

/** A drawing as large as its place: `draw(now)` is called with what is shown, and again when that room changes. */
export class Drawing {
  width = 0;
  height = 0;
  /** @type {any} */
  now = null;

  /** @param {string} kind @param {string} spoken @param {(now: any) => void} draw */
  constructor(kind, spoken, draw) {
    this.svg = dom.s("svg", { role: "group", "aria-label": spoken });
    this.host = dom.h("div", { class: `svp-plot ${kind}` }, this.svg);
    this.draw = draw;
    new ResizeObserver(() => this.show(this.now)).observe(this.host);
  }

  show(now) {
    this.now = now;
    [this.width, this.height] = [this.host.clientWidth, this.host.clientHeight];
    if (!now || this.width < 40 || this.height < 40) return;
    set(this.svg, { width: this.width, height: this.height });
    this.draw(now);
  }
}

/** A handle that is a slider for screen readers. */
export function handle(spoken, kind, most = "1") {
  const ring = mark("circle", `svp-knob svp-knob-${kind}`);
  return { ring, knob: dom.s("g", { role: "slider", tabindex: "-1", "aria-valuemin": "0", "aria-valuemax": most, "aria-label": spoken }, ring) };
}

/**
 * Let an element be dragged, and moved by keys once it has the focus. `to(event)` is the value under the pointer, `move(by)` takes
 * the number of small steps that a key stands for.
 * @param {SVGElement} element @param {SVGElement} handle
 * @param {{ to(event: PointerEvent): void, move(by: number): void, end?(): void, side?(by: number): void }} how
 */
export function draggable(element, handle, { to, move, end = () => {}, side }) {
  let held = false;
  element.addEventListener("pointerdown", (event) => {
    if (event.button > 0 || handle.getAttribute("aria-disabled") === "true") return;
    held = true;
    element.setPointerCapture(event.pointerId);
    handle.focus({ preventScroll: true });
    to(event);
    event.preventDefault();
  });
  element.addEventListener("pointermove", (event) => held && to(event));
  for (const kind of ["pointerup", "pointercancel"]) {
    element.addEventListener(kind, () => {
      if (held) end();
      held = false;
    });
  }
  handle.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: 1, ArrowDown: -1, PageUp: 10, PageDown: -10, Home: -1000, End: 1000, ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!steps || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    if (side && event.key.match(/Left|Right/)) side(steps);
    else if (handle.getAttribute("aria-disabled") !== "true") {
      move(steps);
      end();
    }
  });
}

/**
 * A slider under its words. `show` writes the value.
 * @param {string} label @param {{ min: number, max: number, step?: number, value: number, show?: (value: number) => string, title?: string }} range @param {(value: number) => void} take
 */
export function slider(label, { min, max, step = 1, value, show = String, title = "" }, take) {
  const output = dom.h("output", {}, show(value));
  const input = dom.h("input", { type: "range", min, max, step, "aria-label": label, "aria-valuetext": show(value) });
  input.value = String(value);
  const write = (now) => {
    input.value = String(now);
    input.setAttribute("aria-valuetext", show(now));
    dom.say(output, show(now));
  };
  input.addEventListener("input", () => {
    write(Number(input.value));
    take(Number(input.value));
  });
  const element = dom.h("label", { class: "svp-slider", title }, dom.h("span", {}, label, output), input);
  return { element, set: write };
}

/** Buttons of which one is on. @param {string} label @param {[string, string][]} choices value and words @param {(value: string) => void} take */
export function chips(label, choices, take) {
  const buttons = choices.map(([value, words]) => dom.button(words, "", () => take(value), { "data-value": value, "aria-pressed": "false" }));
  const element = dom.h("div", { class: "svp-chips", role: "group", "aria-label": label }, buttons);
  const press = (value) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === value));
  };
  return { element, press };
}

/** Do `one` a thousand times, some a frame, as long as `on()`; `frame` follows each batch and `end` the last. @param {{ on(): boolean, one(): void, frame(): void, end(): void }} how */
export function thousand({ on, one, frame, end }) {
  let left = 1000;
  const batch = () => {
    if (!on()) return;
    for (let each = dom.calm() ? left : Math.min(10, left); each > 0; each -= 1, left -= 1) one();
    frame();
    if (left > 0) requestAnimationFrame(batch);
    else end();
  };
  batch();
}

/** A task: words, a button that begins it, and whether it is done. `left` follows if it is given up. @param {string} words @param {() => void} begin @param {string} done */
export function task(words, begin, done, left = () => {}) {
  const button = dom.button("Try it", "", () => {
    element.dataset.state = "on";
    dom.say(said, "");
    begin();
  });
  const said = dom.h("p", { role: "status" });
  const element = dom.h("div", { class: "svp-task" }, dom.h("p", {}, dom.h("b", {}, "Task. "), words), button, said);
  const on = () => element.dataset.state === "on";
  return {
    element, on,
    check(reached) {
      if (!on() || !reached) return;
      element.dataset.state = "done";
      dom.say(said, done);
    },
    drop() {
      if (on()) delete element.dataset.state;
      left();
    },
  };
}

/** A figure to read: a large number, and what it is. @param {string} what */
export function readout(what) {
  const [number, note] = [dom.h("b"), dom.h("small")];
  const element = dom.h("p", { class: "svp-readout" }, number, dom.h("span", {}, what, note));
  return { element, say: (value, more = "") => (dom.say(number, value), dom.say(note, more)) };
}

/** A key to marks: pairs of a class and words. @param {[string, any][]} pairs */
export const key = (...pairs) =>
  dom.h("p", { class: "svp-key" }, pairs.map(([kind, words]) => dom.h("span", {}, dom.h("i", { class: kind, "aria-hidden": "true" }), words)));
