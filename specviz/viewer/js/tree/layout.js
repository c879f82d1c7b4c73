// @ts-check
// Where every node of a step's tree goes: a tidy tree, left to right, judged nodes large, the rest as small as needed.
//
// Text never shrinks below 11 px. When room is short, nodes that were not verified lose size first (small boxes, then dots), then
// the deepest of them hide behind counts, then all but the text shrinks until it fits. A deep and narrow tree is cut into bands. A step's accepted path runs straight, so the eye reads it as one line.
// A tree of more than CROWD items is grouped instead: as many nodes as fit keep their text, first those near the node in focus, and each
// group of others is one count. Zooming out shows its whole shape.
import * as labels from "../kit/labels.js";
import { FAILED, JUDGED } from "../run/decode.js";
import * as bands from "./bands.js";
import { edges } from "./edges.js";
import { FORMS, MARGIN, ROUND, labelItem, shapeItem } from "./items.js";

const NAMED = FORMS.filter((form) => !ROUND[form.unverified]);
const WIDEST_GAP = 112;
const LIMIT = 400;
const DEEP = 10; // columns at which a narrow tree is cut into bands rather than drawn without its text
const SHRINK = [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.42, 0.35, 0.28, 0.22, 0.16, 0.11, 0.07]; // sizes of the drawing, tried in turn until it fits
const READABLE = SHRINK.filter((size) => size >= 0.6); // a class that is asked what will be kept must be able to read the draft
const CROWD = 40; // more items than this are grouped rather than drawn without their text
const FIRST = 3; // guesses of each group that come before those far down another
const GROUPED = [
  { unverified: "small", failed: "small", group: true, named: 99, chars: 12, gap: 18 },
  { unverified: "small", failed: "small", group: true, kept: "bare", named: 99, chars: 8, gap: 16 },
];
const MANY = 12; // more pruned nodes than this are folded into a count once others would lose their text to them
export const PRUNED_CHIP = "chippruned";

/**
 * The items to draw, at most `limit`: judged nodes first, then opened branches, then shallow before deep. `fold` replaces
 * all nodes pruned before the pass by one count at the root.
 */
export function choose(step, limit = LIMIT, opened = new Set(), fold = false) {
  const nodes = fold ? step.nodes.filter((node) => node.status !== "pruned") : step.nodes;
  const weight = (node) => (JUDGED.has(node.status) || node.id === 0 ? 0 : opened.has(node.parent) ? 1 : 2);
  const order = nodes
    .slice()
    .sort((a, b) => weight(a) - weight(b) || a.depth - b.depth || a.rank - b.rank || a.id - b.id);
  // A hidden branch costs one item for its count, hence three quarters of the limit when something must hide.
  const places = nodes.length + 1 <= limit ? nodes.length : Math.floor(limit * 0.75);
  return fill(step, order, places, Math.min(LIMIT, 2 * limit), fold);
}

/** The first `places` nodes of an order whose parents are drawn too. @param {Step} step @param {TreeNode[]} order @param {boolean} fold */
function fill(step, order, places, limit, fold) {
  const visible = new Set([0]);
  for (const node of order) {
    if (visible.size >= places) break;
    if (visible.has(node.parent)) visible.add(node.id);
  }
  const drawing = assemble(step, visible, limit, fold);
  const { pruned, cut } = step.counts;
  if (fold && pruned) addPruned(drawing, labels.pruned(step), cut);
  else if (cut > pruned) addPruned(drawing, `${cut - pruned} more pruned`, cut - pruned);
  return drawing;
}

// Fields that shapeItem, labelItem and the placement set later.
const UNPLACED = { form: "", label: "", bars: false, u: 1, side: 0, track: 0, place: 0, on: false, off: 0, band: 0, x: 0, y: 0, w: 0, h: 0, tall: 0 };

/** @typedef {{ root: Item, items: Map<number | string, Item> }} Drawing */
/** @typedef {ReturnType<typeof plan> & { form: string }} Sizing */
/** @typedef {{ drawing: Drawing, sizing: Sizing, banded?: NonNullable<ReturnType<typeof bands.plan>>, fits: boolean, shrink?: number }} Fitting */

/** @param {Step} step @param {Set<number>} visible @param {number} limit @param {boolean} fold @returns {Drawing} */
function assemble(step, visible, limit, fold) {
  const size = step.nodes.map((node) => Number(!fold || node.status !== "pruned"));
  for (let id = step.nodes.length - 1; id > 0; id -= 1) size[step.nodes[id].parent] += size[id];
  const items = new Map();
  let chips = 0;
  /** @param {number} id @param {number} parent @returns {Item} */
  const add = (id, parent) => {
    const node = step.nodes[id];
    /** @type {Item} */
    const item = { ...UNPLACED, id, kind: "node", node, parent, depth: node.depth, children: [], hidden: 0 };
    items.set(id, item);
    const children = node.children.filter((child) => visible.has(child));
    item.children = children.map((child) => add(child, id));
    // A failed node's place among its failed siblings decides which of them keep their text when room is short.
    item.children
      .filter((child) => FAILED.has(child.node.status))
      .forEach((child, place) => {
        child.place = place;
      });
    if (step.bonus && step.bonus.parent === id) item.children.push(addItem(items, "bonus", "bonus", step.bonus, item));
    const hidden = node.children.reduce((sum, child) => sum + (visible.has(child) ? 0 : size[child]), 0);
    if (hidden && items.size + chips < limit) {
      chips += 1;
      item.children.push(
        addItem(items, `chip${id}`, "chip", { text: `+${hidden}`, status: "chip", parent: id }, item, hidden),
      );
    }
    return item;
  };
  const root = add(0, -1);
  return { root, items };
}

/** A count at the root for the pruned nodes that are not drawn. @param {Drawing} drawing @param {string} text @param {number} hidden */
function addPruned({ root, items }, text, hidden) {
  root.children.push(addItem(items, PRUNED_CHIP, "chip", { text, status: "chip", parent: 0 }, root, hidden));
}

/** @param {Map<number | string, Item>} items @param {string} id @param {string} kind @param {Bonus | Chip} node @param {Item} parent */
function addItem(items, id, kind, node, parent, hidden = 0) {
  /** @type {Item} */
  const item = { ...UNPLACED, id, kind, node, parent: parent.id, depth: parent.depth + 1, children: [], hidden };
  items.set(id, item);
  return item;
}

/**
 * Slide the subtrees of every item's children together until their outlines touch, depth by depth (Reingold and Tilford
 * 1981). Writes each child's `off` from its parent and returns the upper and lower edge of the subtree at every depth.
 * @param {Item} item
 * @returns {{ top: number[], bottom: number[] }}
 */
function outline(item) {
  /** @type {{ top: number[], bottom: number[] }} */
  const joined = { top: [], bottom: [] };
  for (const child of item.children) {
    const contour = outline(child);
    const shared = Math.min(joined.bottom.length, contour.top.length);
    child.off = 0;
    for (let at = 0; at < shared; at += 1) child.off = Math.max(child.off, joined.bottom[at] - contour.top[at]);
    contour.top.forEach((edge, at) => {
      if (at >= joined.top.length) joined.top[at] = edge + child.off;
      joined.bottom[at] = contour.bottom[at] + child.off;
    });
  }
  const { children } = item;
  const straight = children.find((child) => child.on);
  const ends = children.length ? (children[0].off + children[children.length - 1].off) / 2 : 0;
  const middle = straight ? straight.off : ends;
  for (const child of children) child.off -= middle;
  return {
    top: [-item.tall / 2, ...joined.top.map((edge) => edge - middle)],
    bottom: [item.tall / 2, ...joined.bottom.map((edge) => edge - middle)],
  };
}

/** The height of the whole tree, and how far below its upper edge the root stands. */
function extent(root) {
  const { top, bottom } = outline(root);
  const above = -Math.min(...top);
  return { above, tall: above + Math.max(...bottom) };
}

/** @param {Item} item @param {number} y */
function settle(item, y) {
  item.y = y;
  for (const child of item.children) settle(child, y + child.off);
}

/** @param {Item[]} items */
function columns(items) {
  /** @type {number[]} */
  const widths = [];
  for (const item of items) widths[item.depth] = Math.max(widths[item.depth] || 0, item.w);
  return widths;
}

/** Whether the items of one depth alone are higher than the room, however the tree is drawn. @param {Item[]} items */
function tooTall(items, room) {
  /** @type {number[]} */
  const sums = [];
  for (const item of items) sums[item.depth] = (sums[item.depth] || 0) + item.tall;
  return Math.max(...sums) > room.height - MARGIN.top - MARGIN.bottom;
}

/** @param {Drawing} drawing @param {Item[]} items */
function plan(drawing, items, form, room) {
  for (const item of items) labelItem(item, form, room);
  const widths = columns(items);
  const gap = form.gap * room.u * room.shrink;
  const least = MARGIN.left + MARGIN.right + widths.reduce((sum, width) => sum + width, 0) + gap * (widths.length - 1);
  const tall = MARGIN.top + MARGIN.bottom + extent(drawing.root).tall;
  return { items, widths, gap, least, tall, fits: least <= room.width && tall <= room.height };
}

function placeItems(sizing, drawing, room) {
  const inner = room.height - MARGIN.top - MARGIN.bottom;
  const stretch = Math.min(1.75, Math.max(1, inner / (sizing.tall - MARGIN.top - MARGIN.bottom)));
  for (const item of sizing.items) item.tall *= stretch;
  const { above, tall } = extent(drawing.root);
  const height = Math.max(room.height, tall + MARGIN.top + MARGIN.bottom);
  settle(drawing.root, Math.max(MARGIN.top, (height - tall) / 2) + above);
  const spare = room.width - sizing.least;
  const gap = Math.min(WIDEST_GAP * room.u, sizing.gap + Math.max(0, spare) / Math.max(1, sizing.widths.length - 1));
  let x = MARGIN.left;
  const lefts = sizing.widths.map((width) => (x += width + gap) - width - gap);
  for (const item of sizing.items) item.x = lefts[item.depth];
  return { height, width: Math.max(room.width, x - gap + MARGIN.right) };
}

const fullRoom = (room) => ({
  width: 720,
  height: 380,
  u: 1,
  shrink: 1,
  limit: LIMIT,
  opened: new Set(),
  chosen: null,
  focus: null,
  whole: false,
  ...room,
});

/**
 * Lay out a step. `room` has width and height in CSS pixels, u (size of everything relative to 12.5 px text),
 * measure(text, size, bold), and may have limit, opened (ids whose hidden children are wanted), chosen (a node to enlarge), focus (a
 * node whose siblings come first in a grouped tree) and whole (never group).
 * @param {Step} step
 * @returns {Plan}
 */
export function tree(step, frame) {
  const room = fullRoom(frame);
  const foldable = step.counts.pruned > MANY && !room.opened.has("pruned");
  const named = foldable ? fittingForm(choose(step, room.limit, room.opened), room, step, NAMED, false) : null;
  if (named && named.fits) return finished(named, room);
  const readable = step.veiled ? shrunk(step, room, foldable, READABLE, NAMED) : null;
  if (readable && readable.fits) return finished(readable, room);
  const group = room.whole || room.opened.has("pruned") ? null : grouped(step, room, foldable);
  return group ? { ...finished(group, room), grouped: true } : finished(shrunk(step, room, foldable), room);
}

/** A crowded step with as many named nodes as fit; null if it is not crowded or its path alone does not fit. @param {Step} step @param {boolean} fold @returns {Fitting | null} */
function grouped(step, room, fold) {
  const nodes = fold ? step.nodes.filter((node) => node.status !== "pruned") : step.nodes;
  const whole = nodes.length > CROWD && nodes.length <= room.limit ? fittingForm(choose(step, room.limit, room.opened, fold), room, step, NAMED, false) : null;
  if (nodes.length <= CROWD || (whole && whole.fits)) return null;
  const { parent } = (room.focus === "bonus" ? step.bonus : step.nodes[room.focus]) || step.nodes[0];
  const path = new Set(step.path);
  for (let id = parent; id > 0; id = step.nodes[id].parent) path.add(id);
  const weight = (node) => {
    if (!node.id || path.has(node.id)) return 0;
    if (room.opened.has(node.parent)) return 1;
    return JUDGED.has(node.status) ? (node.parent === parent || node.rank < FIRST ? 2 : 3) : 4;
  };
  const ordered = nodes.slice().sort((a, b) => weight(a) - weight(b) || (weight(a) < 4 ? a.rank - b.rank : 0) || a.depth - b.depth || a.id - b.id);
  const least = ordered.findLastIndex((node) => weight(node) < 2) + 1;
  // A single guess takes no more room than its count.
  const lone = ({ children }) => children.map((id) => step.nodes[id]).filter((one) => children.length === 1 && !one.children.length && !(fold && one.status === "pruned"));
  const order = [...ordered.slice(0, least), ...ordered.flatMap((node) => [node, ...lone(node)])];
  const sized = (places, form) => /** @type {Fitting} */ (fittingForm(fill(step, order, places, LIMIT, fold), room, step, [form], true));
  /** @type {Fitting | null} */
  let best = null;
  for (const [shrink, form] of READABLE.flatMap((size) => GROUPED.map((one) => /** @type {const} */ ([size, one])))) {
    room.shrink = shrink;
    let [fits, low, high] = [sized(least, form), least + 1, nodes.length];
    if (room.opened.size && !fits.fits && !best) return fits; // what was asked for is shown, and scrolls
    while (fits.fits && low <= high) {
      const middle = (low + high) >> 1;
      const more = sized(middle, form);
      if (more.fits) [fits, low] = [more, middle + 1];
      else high = middle - 1;
    }
    if (fits.fits && (!best || fits.drawing.items.size > best.drawing.items.size)) best = { ...fits, shrink };
    if (best && best.drawing.items.size > least + 2 * FIRST) break;
  }
  room.shrink = best ? best.shrink : 1;
  return best;
}

/** The step as large as it fits into the room, in the roomiest form that fits. @param {Step} step @returns {Fitting} */
function shrunk(step, room, fold, sizes = SHRINK, forms = FORMS) {
  const drawing = choose(step, room.limit, room.opened, fold);
  let found;
  for (room.shrink of sizes) {
    found = fittingForm(drawing, room, step, forms, room.shrink === sizes.at(-1));
    if (found && found.fits) break;
  }
  return /** @type {Fitting} */ (found);
}

/** @param {Fitting} fitting @returns {Plan} */
function finished({ drawing, sizing, banded }, room) {
  const { items } = drawing;
  if (banded) return { items, ...banded };
  return { items, ...placeItems(sizing, drawing, room), edges: edges(items, room.u * room.shrink), form: sizing.form };
}

/** A drawing in the roomiest form that fits, in one row or in bands. If none does, null, or the densest if there `must` be one. @param {Drawing} drawing @param {Step} step @returns {Fitting | null} */
function fittingForm(drawing, room, step, forms, must) {
  const items = [...drawing.items.values()];
  for (const item of items) item.on = typeof item.id === "number" && step.path.includes(item.id);
  const depths = 1 + Math.max(...items.map((item) => item.depth));
  // Hardly more than a line: a chain, or a deep tree with few branches.
  const narrow = items.length <= depths + 1 || (depths >= DEEP && items.length <= 3 * depths);
  /** @type {Sizing | null} */
  let sizing = null;
  for (const form of forms) {
    for (const item of items) shapeItem(item, form, room);
    sizing = null;
    // Their text is measured only if their heights leave a chance.
    if (tooTall(items, room) && !(must && form === forms.at(-1))) continue;
    sizing = { ...plan(drawing, items, form, room), form: form.unverified };
    if (sizing.fits) return { drawing, sizing, fits: true };
    const banded = narrow ? inBands(sizing, drawing, room) : null;
    if (banded && banded.fits) return { drawing, sizing, banded, fits: true };
  }
  if (!sizing) return null;
  const banded = sizing.least > room.width ? inBands(sizing, drawing, room) : null;
  return banded && banded.height * room.width < sizing.least * room.height
    ? { drawing, sizing, banded, fits: banded.fits }
    : { drawing, sizing, fits: false };
}

/** @param {{ items: Item[], widths: number[], gap: number }} sizing @param {Drawing} drawing */
function inBands(sizing, drawing, room) {
  settle(drawing.root, 0);
  return bands.plan(sizing, drawing, { ...room, u: room.u * room.shrink });
}
