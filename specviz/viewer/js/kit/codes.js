// @ts-check
// The picture codes of an image run, read from its run line: their two-dimensional map, and the patch of each code.
import * as dom from "./dom.js";
import { box } from "./svgKit.js";
import { findNode } from "../run/decode.js";

const known = new WeakMap();

/** @param {string} text */
function bytes(text) {
  const raw = atob(text);
  return Uint8Array.from(raw, (char) => char.charCodeAt(0));
}

/** @param {Book | null} book */
function read(book) {
  const colours = bytes(book.colours);
  const raw = bytes(book.places);
  const places = new DataView(raw.buffer);
  const size = Math.min(Number(book.size) || 0, Math.floor(colours.length / 3), Math.floor(raw.length / 4));
  const whole = 65535;
  const pixels = bytes(book.patches);
  const side = Math.floor(Math.sqrt(pixels.length / (3 * size)));
  return {
    size,
    // Side of a patch in pixels; 0 if the run has no patches, and codes are named by number and colour.
    side: pixels.length === 3 * size * side * side ? side : 0,
    pixel: (code, at) => pixels.subarray(3 * (code * side * side + at), 3 * (code * side * side + at + 1)),
    addresses: new Map(),
    x: (code) => places.getUint16(4 * code, true) / whole,
    y: (code) => places.getUint16(4 * code + 2, true) / whole,
    rgb: (code) => [colours[3 * code], colours[3 * code + 1], colours[3 * code + 2]],
  };
}

/** Ids unpacked from 16-bit numbers; an older trace holds them as a list. Throws on a damaged text. */
export function list(packed) {
  if (typeof packed !== "string") return packed;
  const raw = bytes(packed);
  const view = new DataView(raw.buffer);
  return Array.from({ length: raw.length >> 1 }, (_, at) => view.getUint16(2 * at, true));
}

/** The book of a run, or null if it has none or a damaged one. @param {Trace.Run | null} run */
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

/** @param {Book | null} book @param {number} code */
export const has = (book, code) => Boolean(book) && Number.isInteger(code) && code >= 0 && code < book.size;
/** @param {Book | null} book @param {number} code */
export const colour = (book, code) => (has(book, code) ? `rgb(${book.rgb(code).join(" ")})` : null);

/** @param {Book | null} book @param {number} code */
const hasPatch = (book, code) => has(book, code) && book.side > 0;

/** A patch as a picture's address: a bitmap file, bottom row first, blue first, each row padded to a multiple of four bytes. @param {Book | null} book @param {number} code */
function bitmap(book, code) {
  const { side } = book;
  const stride = (3 * side + 3) & ~3;
  const file = new Uint8Array(54 + stride * side);
  const head = new DataView(file.buffer);
  file.set([66, 77]);
  for (const [at, value] of [[2, file.length], [10, 54], [14, 40], [18, side], [22, side], [34, stride * side]]) head.setUint32(at, value, true);
  for (const [at, value] of [[26, 1], [28, 24]]) head.setUint16(at, value, true);
  for (let at = 0; at < side * side; at += 1) {
    const [red, green, blue] = book.pixel(code, at);
    file.set([blue, green, red], 54 + stride * (side - 1 - Math.floor(at / side)) + 3 * (at % side));
  }
  return `data:image/bmp;base64,${globalThis.btoa(String.fromCharCode(...file))}`;
}

/** The address of a code's patch, or null. @param {Book | null} book @param {number} code */
export function address(book, code) {
  if (!hasPatch(book, code)) return null;
  if (!book.addresses.has(code)) book.addresses.set(code, bitmap(book, code));
  return book.addresses.get(code);
}

/** What a patch is, for its tooltip. */
export const ABOUT = "The patch shows the code's mean over decoded pictures; in a picture, its neighbours change it.";

/** A code in running text, or null if it has no patch. @param {Book | null} book @param {number} code */
export function image(book, code, kind = "") {
  const src = address(book, code);
  return src && dom.h("img", { src, alt: `code ${code}`, title: `Code ${code}. ${ABOUT}`, class: `sv-code ${kind}` });
}

/** A text that names codes, as “#449” or bare, with a patch in place of each name. @param {Book | null} book @param {string} words */
export function named(book, words) {
  if (!book || !book.side) return [words];
  return words.split(/“?#(\d{1,5})”?/).map((part, at) => (at % 2 ? image(book, Number(part)) || `#${part}` : part));
}

/** A code as a heading: its patch and its number; null for any other token. @param {Book | null} book @param {{ grid: number[] | null, token: number }} node */
export const titled = (book, node) =>
  node.grid && hasPatch(book, node.token) ? [image(book, node.token, "sv-large"), ` code ${node.token}`] : null;

/** Codes in a line, nearest first: another code may stand for the first `count`; the others were only considered. @param {Book | null} book */
export function kin(book, list, count) {
  if (!book || !book.side) return null;
  const patches = list.slice(0, 60).map((code, at) => image(book, code, at < count ? "" : "sv-considered-code"));
  return dom.h("span", { class: "sv-kin", role: "group", "aria-label": "nearest latent codes" }, patches);
}

/** A code in a drawing: a square of its colour, its patch inside the outline. @param {Book | null} book @param {number} code @param {number} x @param {number} y @param {number} size @param {string} kind */
export function tile(book, code, x, y, size, kind, rx = 0) {
  const ground = box(x, y, size, size, kind, rx);
  ground.style.fill = colour(book, code) || "var(--sv-track)";
  return dom.s("g", {}, ground, picture(book, code, x + 1, y + 1, size - 2));
}

/** @param {Book | null} book @param {number} code @param {number} x @param {number} y @param {number} size */
function picture(book, code, x, y, size, kind = "") {
  const href = address(book, code);
  return href && dom.s("image", { href, x, y, width: size, height: size, preserveAspectRatio: "none", class: `sv-patch-image ${kind}` });
}

/** Paint a code's patch, else its colour, on a canvas. @param {CanvasRenderingContext2D} pen @param {Book | null} book @param {number} code @param {number} x @param {number} y @param {number} size */
export function paint(pen, book, code, x, y, size) {
  pen.fillStyle = colour(book, code) || "#ddd";
  pen.fillRect(x, y, size, size);
  if (!hasPatch(book, code)) return;
  const one = size / book.side;
  for (let at = 0; at < book.side ** 2; at += 1) {
    pen.fillStyle = `rgb(${book.pixel(code, at).join(" ")})`;
    pen.fillRect(x + (at % book.side) * one, y + Math.floor(at / book.side) * one, one, one);
  }
}

const PAD = 8;

/** Positions of codes on a map of this size, x and y in pixels. @param {Book | null} book @param {number} width @param {number} height */
export const places = (book, width, height) => [
  (code) => PAD + book.x(code) * (width - 2 * PAD),
  (code) => PAD + (1 - book.y(code)) * (height - 2 * PAD),
];

const grounds = new WeakMap();

/** The map's background: codes as small dots in their own colours. Drawn once; hundreds of elements per step slow a live run down. @param {Book | null} book @param {number} width @param {number} height */
export function ground(book, width, height) {
  const scale = devicePixelRatio || 1;
  const key = [width, height, scale].join();
  const last = grounds.get(book);
  if (last && last.key === key) return last.canvas;
  const canvas = dom.h("canvas", { width: width * scale, height: height * scale, "aria-hidden": "true" });
  const pen = dom.pen(canvas);
  pen.scale(scale, scale);
  pen.strokeStyle = "rgb(128 128 128 / 0.6)"; // visible on light and dark pages
  pen.lineWidth = 0.6;
  const [x, y] = places(book, width, height);
  for (let code = 0; code < book.size; code += Math.ceil(book.size / 2500)) {
    /** @type {[number, number, number, number]} */
    const dot = [x(code) - 2.5, y(code) - 2.5, 5, 5];
    pen.fillStyle = colour(book, code) || "";
    pen.fillRect(...dot);
    pen.strokeRect(...dot);
  }
  grounds.set(book, { key, canvas });
  return canvas;
}

/** Black or white, whichever is easier to read on a code's colour. @param {Book | null} book @param {number} code */
function ink(book, code) {
  const [red, green, blue] = book.rgb(code);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#111" : "#fff";
}

/** Which nodes of a tree are drawn as patches: a test, or null in a run without patches. @param {Book | null} book */
export const patched = (book) => (book && book.side ? (node) => Boolean(node.grid) && hasPatch(book, node.token) : null);

/** Fill the drawn nodes of a tree with their codes' patches, or with the colours in dots and without patches. Verdicts keep their frames. @param {Step} step @param {Book | null} book @param {Map<number | string, Item>} items */
export function tint(svg, step, book, items) {
  if (!book) return;
  for (const group of svg.querySelectorAll("g[data-id]")) {
    const id = group.dataset.id === "bonus" ? "bonus" : Number(group.dataset.id);
    const node = findNode(step, id);
    if (!node || !node.grid || !has(book, node.token)) continue;
    const item = items.get(id);
    if (!item) continue;
    const { side, w, h } = item;
    // A moving node is drawn in layers, each with a shape of its own.
    for (const shape of group.querySelectorAll(".sv-box, .sv-diamond")) {
      if (side) {
        const round = 2 * Number(shape.getAttribute("rx")) >= h;
        shape.after(picture(book, node.token, id === "bonus" ? w - side - 2 : (h - side) / 2, -side / 2, side, round ? "sv-round" : ""));
        continue;
      }
      shape.style.fill = colour(book, node.token);
      shape.classList.add("sv-tinted");
    }
    group.classList.toggle("sv-patched", side > 0);
    if (side || group.querySelector(".sv-diamond")) continue;
    for (const word of group.querySelectorAll("text")) word.style.fill = ink(book, node.token);
  }
}
