// The picture codes of an image run: their map in two dimensions and the colour each one paints, out of the run line.
import * as coerce from "./coerce.js";
import * as dom from "./dom.js";
import { findNode } from "../run/parseStep.js";

const known = new WeakMap();

function bytes(text) {
  const raw = atob(text);
  return Uint8Array.from(raw, (char) => char.charCodeAt(0));
}

function read(book) {
  const colours = bytes(coerce.text(book.colours));
  const raw = bytes(coerce.text(book.places));
  const places = new DataView(raw.buffer);
  const size = Math.min(Number(book.size) || 0, Math.floor(colours.length / 3), Math.floor(raw.length / 4));
  const whole = 65535;
  return {
    size,
    x: (code) => places.getUint16(4 * code, true) / whole,
    y: (code) => places.getUint16(4 * code + 2, true) / whole,
    rgb: (code) => [colours[3 * code], colours[3 * code + 1], colours[3 * code + 2]],
  };
}

/** Ids packed as 16-bit numbers, or as they stand in an older trace. Throws on a damaged text. */
export function list(packed) {
  if (typeof packed !== "string") return coerce.list(packed);
  const raw = bytes(packed);
  const view = new DataView(raw.buffer);
  return Array.from({ length: raw.length >> 1 }, (_, at) => view.getUint16(2 * at, true));
}

/** The book of a run, or null where it has none or a damaged one. */
export function of(run) {
  if (!run || !run.codebook) return null;
  if (!known.has(run)) {
    let book = null;
    try {
      book = read(run.codebook);
    } catch {
      book = null;
    }
    known.set(run, book);
  }
  return known.get(run);
}

export const has = (book, code) => Boolean(book) && Number.isInteger(code) && code >= 0 && code < book.size;
export const colour = (book, code) => (has(book, code) ? `rgb(${book.rgb(code).join(" ")})` : null);

const PAD = 8;

/** Where codes stand on a map of this size: across, and down, in pixels. */
export const places = (book, width, height) => [
  (code) => PAD + book.x(code) * (width - 2 * PAD),
  (code) => PAD + (1 - book.y(code)) * (height - 2 * PAD),
];

const grounds = new WeakMap();

/** The map's ground: codes as small dots in their own colours. Drawn once; hundreds of elements a step slow a live run down. */
export function ground(book, width, height) {
  const scale = devicePixelRatio || 1;
  const key = [width, height, scale].join();
  const last = grounds.get(book);
  if (last && last.key === key) return last.canvas;
  const canvas = dom.h("canvas", { width: width * scale, height: height * scale, "aria-hidden": "true" });
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.strokeStyle = "rgb(128 128 128 / 0.6)"; // seen on a light page and on a dark one
  pen.lineWidth = 0.6;
  const [x, y] = places(book, width, height);
  for (let code = 0; code < book.size; code += Math.ceil(book.size / 2500)) {
    const dot = [x(code) - 2.5, y(code) - 2.5, 5, 5];
    pen.fillStyle = colour(book, code);
    pen.fillRect(...dot);
    pen.strokeRect(...dot);
  }
  grounds.set(book, { key, canvas });
  return canvas;
}

/** Black or white, whichever is read more easily on a code's colour. */
function ink(book, code) {
  const [red, green, blue] = book.rgb(code);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#111" : "#fff";
}

/** Fill the drawn nodes of a tree with the colours of their codes; verdicts keep their outlines. */
export function tint(svg, step, book) {
  if (!book) return;
  for (const group of svg.querySelectorAll("g[data-id]")) {
    const node = findNode(step, group.dataset.id === "bonus" ? "bonus" : Number(group.dataset.id));
    if (!node || !node.grid || !has(book, node.token)) continue;
    for (const shape of group.querySelectorAll(".sv-box, .sv-diamond")) {
      shape.style.fill = colour(book, node.token);
      shape.classList.add("sv-tinted");
    }
    if (group.querySelector(".sv-diamond")) continue;
    for (const word of group.querySelectorAll("text")) word.style.fill = ink(book, node.token);
  }
}
