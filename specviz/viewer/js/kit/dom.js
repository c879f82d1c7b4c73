// @ts-check
// Makes elements. Strings only ever become text nodes or attribute values, so token text cannot turn into markup.

const SVG = "http://www.w3.org/2000/svg";

const MOST = 4000; // elements of one note: eight times those of the largest real one
let left = Infinity;
/**
 * The result of `draw`. Throws once it has made more elements than a note may have, because too many hang the page.
 * @template T
 * @param {() => T} draw
 */
export function withinBudget(draw) {
  const outer = left;
  left = Math.min(outer, MOST);
  try {
    return draw();
  } finally {
    left = outer;
  }
}

/**
 * @template {Element} E
 * @param {E} element
 * @param {Record<string, any> | undefined} attributes
 * @param {any[]} children
 */
function fill(element, attributes, children) {
  left -= 1;
  if (left < 0) throw new Error("more than a page can draw");
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined) element.append(child);
  return element;
}

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [attributes]
 * @param {Child[]} children
 */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
/**
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {Child[]} children
 * @returns {SVGElement}
 */
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** @param {Child} label @param {string} title @param {() => void} action @param {Record<string, any>} [attributes] */
export function button(label, title, action, attributes) {
  const element = h("button", { type: "button", title, ...attributes }, label);
  element.addEventListener("click", action);
  return element;
}

/** Buttons of which one is in the Tab order; arrows reach the others. @param {string} label @param {HTMLButtonElement[]} buttons */
export const toolbar = (label, ...buttons) => rove(h("div", { class: "sv-tools", role: "toolbar", "aria-label": label }, buttons), buttons);

/** Keep one of the buttons in a box in the Tab order; arrows reach the others. @param {HTMLElement} box @param {HTMLElement[]} buttons */
export function rove(box, buttons) {
  const enter = (to) => buttons.forEach((one) => (one.tabIndex = one === to ? 0 : -1));
  box.addEventListener("focusin", ({ target }) => enter(target));
  box.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const row = buttons.filter((one) => !one.hidden && !one.matches(":disabled"));
    row.at((row.findIndex((one) => one === event.target) + by) % row.length)?.focus();
  });
  if (buttons.length) enter(buttons.find((one) => one.ariaPressed === "true") || buttons[0]);
  return box;
}

// Drawn, because the usual characters for these are missing in some fonts and turn into emoji in others.
const ICONS = {
  first: "M3 2.5h2v11h-2zM13 2.5v11l-7.5-5.5z",
  back: "M11.5 2.5v11l-7.5-5.5z",
  play: "M4 2l9 6l-9 6z",
  pause: "M3.5 2.5h3v11h-3zM9.5 2.5h3v11h-3z",
  reject: "M1.5 4.5l1.5-1.5l3 3l3-3l1.5 1.5l-3 3l3 3l-1.5 1.5l-3-3l-3 3l-1.5-1.5l3-3zM11 4.5l4 3.5l-4 3.5z",
  on: "M4.5 2.5l7.5 5.5l-7.5 5.5z",
  slow: "M2 2.5h2v11h-2zM6.5 2.5l7.5 5.5l-7.5 5.5z",
  projector: "M1 2h14v8h-6l2.5 4h-1.8l-1.7-2.8l-1.7 2.8h-1.8l2.5-4h-6zM2.6 3.6v4.8h10.8v-4.8z",
  full: "M2 2h5v2h-3v3h-2zM14 14h-5v-2h3v-3h2z",
};
/** @param {keyof ICONS} name */
export const icon = (name) =>
  s("svg", { class: "sv-icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, s("path", { d: ICONS[name] }));

/** Change text only when it differs, so that an unchanged live region stays silent. @param {Element} element @param {string} text */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The 2D context of a canvas. @param {any} canvas @returns {CanvasRenderingContext2D} */
export const pen = (canvas) => canvas.getContext("2d");

/** The element nearest to an event's target that matches `selector`. @param {any} event @param {string} selector @returns {HTMLElement | null} */
export const closest = ({ target }, selector) => (target.closest ? target.closest(selector) : null);

export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

let ids = 0;
/** @param {string} stem */
export const id = (stem) => `sv-${stem}-${++ids}`;

/** @type {CanvasRenderingContext2D | null} */
let ruler = null;
const widths = new Map();
/** Width in CSS pixels of `text` in the monospace font at `size`. @param {string} text @param {number} size @param {boolean} [bold] @returns {number} */
export function measure(text, size, bold) {
  const key = `${size}${bold ? "b" : ""}${text}`;
  if (!widths.has(key)) {
    if (widths.size > 20000) widths.clear();
    ruler = ruler || pen(document.createElement("canvas"));
    ruler.font = `${bold ? 600 : 400} ${size}px ${MONO}`;
    widths.set(key, ruler.measureText(text).width);
  }
  return widths.get(key);
}

const MONO = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace';
export const SANS = 'Inter, system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
