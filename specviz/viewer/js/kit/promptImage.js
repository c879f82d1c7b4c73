// The picture of a run. It travels with the first step; every panel may draw it, patch by patch.
import * as coerce from "./coerce.js";
import * as dom from "./dom.js";
import * as svgKit from "./svgKit.js";

const MOST = 4096;
const LONGEST = 200000;
const known = new WeakMap();

/** Prompt places from rows of [first, how many]. */
export const places = (spans) =>
  coerce
    .list(spans)
    .flatMap(([first, many]) =>
      Number.isInteger(first) && Number.isInteger(many) && many > 0
        ? Array.from({ length: Math.min(many, MOST) }, (_, at) => first + at)
        : [],
    )
    .slice(0, MOST);

function boxes(note, rows, columns) {
  const rects = coerce.list(note.boxes).map(coerce.numbers);
  if (rects.length && rects.every((box) => box.length === 4 && !box.includes(null))) return rects;
  return Array.from({ length: Math.min(MOST, rows * columns) }, (_, at) => {
    const [row, column] = [Math.floor(at / columns), at % columns];
    return [column / columns, row / rows, (column + 1) / columns, (row + 1) / rows];
  });
}

function read(note) {
  const data = coerce.list(note && note.png).map(coerce.text).join("");
  // Nothing but base64 may enter the address.
  if (!data || data.length > LONGEST || !/^[A-Za-z0-9+/]+={0,2}$/.test(data)) return null;
  const [width, height] = coerce.list(note.size).map((side) => Math.max(1, coerce.number(side) || 1));
  const [rows, columns] = coerce.list(note.grid).map((side) => Math.max(0, coerce.amount(side)));
  const where = boxes(note, rows || 0, columns || 0);
  const at = new Map(places(note.spans).map((place, index) => [place, where[index]]));
  const address = `data:image/png;base64,${data}`;
  return { address, width: width || 1, height: height || 1, rows, columns, at, prompt: coerce.number(note.prompt) };
}

/** The first step's note of this type, from whatever step is shown. */
export function first(stage, type) {
  const steps = (stage.trace && stage.trace.steps) || [stage.step];
  return (steps[0] && steps[0].notes.find((note) => note.type === type)) || null;
}

/** The run's picture, or null. */
export function of(stage) {
  const note = first(stage, "picture");
  if (!note) return null;
  if (!known.has(note)) known.set(note, read(note));
  return known.get(note);
}

/** Width and height at which the picture fits a square of this side. */
export function fit(picture, side) {
  const share = side / Math.max(picture.width, picture.height);
  return [picture.width * share, picture.height * share];
}

/** The picture at a point; `look(place)` gives the class of a patch, or null for none. */
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

/** The middle of a patch. */
export function middle(picture, place, x, y, side) {
  const box = picture.at.get(place);
  if (!box) return null;
  const [wide, high] = fit(picture, side);
  return [x + ((box[0] + box[2]) / 2) * wide, y + ((box[1] + box[3]) / 2) * high];
}
