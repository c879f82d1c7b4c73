// @ts-check
// Exact and relaxed pictures: the target's own beside one with looser acceptance, the codes that differ, and distance against speed.
import * as dom from "../kit/dom.js";

/** @typedef {{ method: string, title: string, name: string, value: number, picture: string, tau: number, speedup: number, distance: number, cells: number[] }} Row */
/** @typedef {{ prompt: string, target: string, machine: string, independent: number, columns: number, picture: string, rows: Row[] }} Sweep */

const [WIDE, HIGH, LEFT, FOOT] = [560, 236, 44, 42];

/** @param {string} picture @param {string} caption */
const shown = (picture, caption) => dom.h("figure", {}, dom.h("img", { src: `data:image/webp;base64,${picture}`, alt: caption }), dom.h("figcaption", {}, caption));

export function relaxed() {
  const title = dom.h("h2", { "aria-live": "polite" });
  const methods = dom.h("div", { class: "svf-tools", role: "group", "aria-label": "Method" });
  const slider = /** @type {HTMLInputElement} */ (dom.h("input", { type: "range", min: 0, step: 1, "aria-label": "How loosely codes are accepted" }));
  const about = dom.h("p", { class: "svf-note" });
  const pictures = dom.h("div", { class: "svf-pictures" });
  const curve = dom.h("div", { class: "svf-curve" });
  const strict = dom.h("label", { class: "svf-strict" }, dom.h("span", {}, "strict"), slider, dom.h("span", {}, "loose"));
  const element = dom.h("div", { class: "svf-relaxed" }, dom.h("header", {}, title, methods, about), strict, pictures, curve);
  /** @type {Sweep} */ let sweep;
  /** @type {Row} */ let now;

  /** The rows of the chosen method. */
  const own = () => sweep.rows.filter((row) => row.method === now.method);

  /** Where the codes are others than the target would have drawn there: the stronger, the less alike. */
  function map() {
    const side = 10,
      size = side * sweep.columns;
    const cells = now.cells.map((gap, at) => gap && dom.s("rect", { x: side * (at % sweep.columns), y: side * Math.floor(at / sweep.columns), width: side - 1, height: side - 1, class: "svf-changed", opacity: Math.min(1, 0.25 + gap / 130) }));
    const changed = now.cells.filter(Boolean).length;
    const caption = `${changed} of ${now.cells.length} codes differ from the target's choice there`;
    return dom.h("figure", {}, dom.s("svg", { viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": caption }, dom.s("rect", { width: size, height: size, class: "svf-unchanged" }), cells.filter(Boolean)), dom.h("figcaption", {}, caption));
  }

  /** Mean distance from the target's choices against speed, a line for each method; a dot chooses its setting. */
  function plot() {
    const { rows, independent } = sweep;
    const far = 1.08 * Math.max(independent, ...rows.map((row) => row.distance)),
      fast = 1.1 * Math.max(1, ...rows.map((row) => row.speedup));
    const x = (distance) => LEFT + ((WIDE - LEFT - 16) * distance) / far,
      y = (gain) => 10 + (HIGH - FOOT - 10) * (1 - gain / fast);
    const put = (at, up, words, more = {}) => dom.s("text", { x: at, y: up, ...more }, words);
    const level = (gain) => [dom.s("line", { x1: LEFT, x2: WIDE - 16, y1: y(gain), y2: y(gain), class: gain === 1 ? "svf-even" : "svf-grid" }), put(LEFT - 6, y(gain) + 4, `${gain}×`, { "text-anchor": "end" })];
    const lines = [...new Set(rows.map((row) => row.method))].map((method) => {
      const several = rows.filter((row) => row.method === method);
      const path = several.map((row) => `${x(row.distance).toFixed(1)} ${y(row.speedup).toFixed(1)}`).join("L");
      const dots = several.map((row) => {
        const dot = dom.s("circle", { cx: x(row.distance), cy: y(row.speedup), r: row === now ? 8 : 5, class: row === now ? "svf-now" : "svf-dot" }, dom.s("title", {}, sentence(row)));
        dot.addEventListener("click", () => choose(row));
        return dot;
      });
      return [dom.s("path", { d: `M${path}`, class: method === now.method ? "svf-line svf-now-line" : "svf-line" }), dots];
    });
    const alone = [dom.s("circle", { cx: x(0), cy: y(1), r: 5, class: "svf-alone" }), put(x(0) + 9, y(1) - 7, "the target alone")];
    const another = [dom.s("line", { x1: x(independent), x2: x(independent), y1: 10, y2: HIGH - FOOT, class: "svf-grid" }), put(x(independent) - 6, 20, "as far as another draw", { "text-anchor": "end" })];
    const ticks = Array.from({ length: Math.floor(fast) + 1 }, (_, gain) => level(gain));
    const axis = put(WIDE - 16, HIGH - 8, "mean distance of a code from the target's choice →", { "text-anchor": "end" });
    return dom.s("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": "Distance against speed" }, ticks, another, axis, lines, alone);
  }

  const sentence = (row) => `${row.title}, ${row.name} = ${row.value}: ${row.speedup}×, τ ${row.tau}, distance ${row.distance}`;

  /** @param {Row} row */
  function choose(row) {
    now = row;
    slider.max = String(own().length - 1);
    slider.value = String(own().indexOf(now));
    slider.setAttribute("aria-valuetext", `${now.name} = ${now.value}`);
    for (const button of methods.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.method === now.method));
    dom.say(title, sentence(now));
    pictures.replaceChildren(shown(sweep.picture, "the target alone"), shown(now.picture, `${now.title}, ${now.name} = ${now.value}`), map());
    curve.replaceChildren(plot());
  }
  slider.addEventListener("input", () => choose(own()[Number(slider.value)]));

  /** @param {Sweep} found */
  function take(found) {
    sweep = found;
    const first = new Map(sweep.rows.map((row) => [row.method, row.title]));
    methods.replaceChildren(...[...first].map(([method, name]) => dom.button(name, "", () => choose(/** @type {Row} */ (sweep.rows.find((row) => row.method === method))), { class: "svf-box", "data-method": method })));
    dom.say(about, `“${sweep.prompt}” by ${sweep.target}, every time with the same seed. Relaxed methods keep codes that the target would not have drawn. ${sweep.machine}.`);
    choose(sweep.rows[Math.floor(sweep.rows.length / 3)]);
  }
  return { element, take };
}
