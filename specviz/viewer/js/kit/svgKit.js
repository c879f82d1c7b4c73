// @ts-check
// Small parts that the drawings of notes are made of: words in an SVG, a frame with a spoken name, a key, a caption.
import * as dom from "./dom.js";

/** @param {number} value */
export const round = (value) => Math.round(value * 10) / 10;

/** Words at a point; never smaller than 11 px, larger on a large stage. `how`: anchor, kind (a class), size, bold. */
export function text(stage, x, y, words, how = {}) {
  const size = Math.max(11, (how.size || 11.5) * stage.u);
  const attributes = { x: round(x), y: round(y), "font-size": size, "text-anchor": how.anchor || "start" };
  return dom.s("text", { ...attributes, class: how.kind || null, "font-weight": how.bold ? 650 : null }, words);
}

/** @param {string} kind */
export const line = (x1, y1, x2, y2, kind) =>
  dom.s("path", { d: `M${round(x1)} ${round(y1)}L${round(x2)} ${round(y2)}`, class: kind });

/** @param {number} x @param {number} y @param {number} width @param {number} height @param {string} kind */
export const box = (x, y, width, height, kind, rx = 2) =>
  dom.s("rect", { x: round(x), y: round(y), width: round(width), height: round(height), rx, class: kind });

/** A vessel filled to the fraction `full` (0 to 1). @param {number} x @param {number} y @param {number} width @param {number} height */
export function tank(x, y, width, height, full, kind = "") {
  const level = height * Math.min(1, Math.max(0, full || 0));
  return dom.s(
    "g",
    { class: `sv-tank ${kind}` },
    box(x, y, width, height, "sv-tank-wall"),
    box(x, y + height - level, width, level, "sv-tank-fill", level > 4 ? 2 : 0),
  );
}

/** A picture that is as wide as its pane. `spoken` is its description for screen readers. @param {number} width @param {number} height */
export const frame = (width, height, spoken, ...parts) =>
  dom.s("svg", { class: "sv-figure", width, height, role: "img", "aria-label": spoken }, ...parts);

export const caption = (...parts) => dom.h("p", { class: "sv-explanation" }, ...parts);

/** Further details: folded away, and once opened, open at every step. @param {Stage} stage */
export function more(stage, ...parts) {
  const fold = dom.h("details", { class: "sv-more" }, dom.h("summary", {}, "More"), ...parts);
  fold.addEventListener("toggle", () => {
    if (fold.isConnected) stage.unfolded = fold.open;
  });
  stage.folds.push(fold);
  return fold;
}

/** Pairs of a mark and its meaning. A mark is an SVG element drawn around the origin, 14 px wide at most. */
export const key = (...pairs) =>
  dom.h(
    "p",
    { class: "sv-note-legend" },
    pairs.map(([mark, meaning]) =>
      dom.h(
        "span",
        {},
        dom.s("svg", { width: 16, height: 14, viewBox: "-8 -7 16 14", "aria-hidden": "true" }, mark),
        meaning,
      ),
    ),
  );

/** A cross, for what failed. @param {number} x @param {number} y */
export const cross = (x, y, r, kind = "sv-failed-mark") =>
  dom.s("path", {
    d: `M${round(x - r)} ${round(y - r)}L${round(x + r)} ${round(y + r)}M${round(x + r)} ${round(y - r)}L${round(x - r)} ${round(y + r)}`,
    class: kind,
  });

/** @param {number} x @param {number} y @param {string} kind */
export const disc = (x, y, r, kind) => dom.s("circle", { cx: round(x), cy: round(y), r, class: kind });

/** @param {number} x @param {number} y @param {string} kind */
export const rhombus = (x, y, r, kind) =>
  dom.s("path", {
    d: `M${round(x - r)} ${round(y)}L${round(x)} ${round(y - r)}L${round(x + r)} ${round(y)}L${round(x)} ${round(y + r)}Z`,
    class: kind,
  });

/** A click on a mark that carries data-id picks its node; the pointer over it shows `describe(id)`. @param {SVGElement} element @param {Stage} stage */
export function pickable(element, stage, describe) {
  element.addEventListener("click", (event) => {
    const mark = dom.closest(event, "[data-id]");
    if (mark) stage.pick(Number(mark.dataset.id));
  });
  stage.tip.over(element, (event) => {
    const mark = dom.closest(event, "[data-id]");
    return mark ? describe(Number(mark.dataset.id)) : null;
  });
  return element;
}
