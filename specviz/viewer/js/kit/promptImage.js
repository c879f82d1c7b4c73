// @ts-check
// The picture of a run. It travels with the first step; every panel may draw it, patch by patch.
import * as dom from "./dom.js";
import * as svgKit from "./svgKit.js";
import { noteOf } from "../run/decode.js";

const MOST = 4096;
const LONGEST = 200000;
const known = new WeakMap();

/** Prompt positions from rows of [first, count]. @param {[number, number][]} spans */
export const places = (spans) =>
  spans.flatMap(([first, many]) => Array.from({ length: Math.min(Math.max(0, many), MOST) }, (_, at) => first + at)).slice(0, MOST);

/** @param {Trace.PictureNote} note @param {number} rows @param {number} columns */
function boxes(note, rows, columns) {
  if (note.boxes) return note.boxes;
  return Array.from({ length: Math.min(MOST, rows * columns) }, (_, at) => {
    const [row, column] = [Math.floor(at / columns), at % columns];
    return [column / columns, row / rows, (column + 1) / columns, (row + 1) / rows];
  });
}

/** @typedef {NonNullable<ReturnType<typeof read>>} PromptImage */

/** @param {Trace.PictureNote} note */
function read(note) {
  const data = note.png.join("");
  // Nothing but base64 may enter the address.
  if (!data || data.length > LONGEST || !/^[A-Za-z0-9+/]+={0,2}$/.test(data)) return null;
  const [width, height] = note.size.map((side) => Math.max(1, side));
  const [rows, columns] = note.grid.map((side) => Math.max(0, side));
  const where = boxes(note, rows, columns);
  const at = new Map(places(note.spans).map((place, index) => [place, where[index]]));
  const address = `data:image/png;base64,${data}`;
  return { address, width, height, rows, columns, at, prompt: note.prompt };
}

/**
 * The first step's note of this type, whichever step is shown.
 * @template {keyof Trace.Notes} K
 * @param {Stage} stage
 * @param {K} type
 */
export function first({ trace }, type) {
  return trace.steps.length ? noteOf(trace.steps[0], type) : undefined;
}

/** The run's picture, or null. @param {Stage} stage @returns {PromptImage | null} */
export function of(stage) {
  const note = first(stage, "picture");
  if (!note) return null;
  if (!known.has(note)) known.set(note, read(note));
  return known.get(note);
}

/** Width and height at which the picture fits a square of this side. @param {PromptImage} picture @param {number} side */
export function fit(picture, side) {
  const share = side / Math.max(picture.width, picture.height);
  return [picture.width * share, picture.height * share];
}

/** The picture at a point; `look(place)` gives the class of a patch, or null for none. @param {PromptImage} picture @param {number} x @param {number} y @param {number} side @param {(place: number) => string | null} look */
export function draw(picture, x, y, side, look) {
  const [wide, high] = fit(picture, side);
  const image = dom.s("image", {
    href: picture.address, x: svgKit.round(x), y: svgKit.round(y), width: svgKit.round(wide), height: svgKit.round(high),
    preserveAspectRatio: "none", class: "sv-prompt-image",
  });
  const patches = [...picture.at].map(([place, box]) => {
    const kind = box && look(place);
    if (!kind) return null;
    const [left, top, right, low] = box;
    return svgKit.box(x + left * wide, y + top * high, (right - left) * wide, (low - top) * high, kind, 0);
  });
  return dom.s("g", {}, image, patches);
}

/** The middle of a patch. @param {PromptImage} picture @param {number} place @param {number} x @param {number} y @param {number} side */
export function middle(picture, place, x, y, side) {
  const box = picture.at.get(place);
  if (!box) return null;
  const [wide, high] = fit(picture, side);
  return [x + ((box[0] + box[2]) / 2) * wide, y + ((box[1] + box[3]) / 2) * high];
}
