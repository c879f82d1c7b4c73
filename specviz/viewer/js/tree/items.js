// @ts-check
// The form and the size of the tree's items: judged nodes large, the rest as small as needed.
import * as format from "../kit/format.js";
import { FAILED, JUDGED } from "../run/decode.js";

// Forms from roomy to dense: how unverified and failed nodes are drawn, how much text the unverified ones keep, and the
// smallest gap between columns. Accepted nodes are always drawn in full.
// `named` of the failed siblings keep their text, the rest become dots (as in `crowd`).
export const FORMS = [
  { unverified: "full", failed: "full", named: 99, chars: 16, gap: 26 },
  { unverified: "small", failed: "full", named: 99, chars: 14, gap: 20 },
  { unverified: "small", failed: "full", named: 99, chars: 7, gap: 16 },
  { unverified: "dot", failed: "full", named: 99, chars: 14, gap: 15 },
  { unverified: "dot", failed: "bare", named: 99, chars: 14, gap: 15 },
  { unverified: "dot", failed: "small", named: 99, chars: 14, gap: 15 },
  { unverified: "dot", failed: "small", named: 3, chars: 14, gap: 15 },
  { unverified: "dot-small", failed: "small", named: 1, chars: 14, gap: 14 },
  { unverified: "dot-tiny", failed: "small", named: 1, chars: 14, gap: 14 },
  { unverified: "dot-tiny", failed: "small", named: 1, crowd: "dot-small", chars: 14, gap: 14 },
  { unverified: "dot-least", failed: "small", named: 1, crowd: "dot-tiny", chars: 14, gap: 14 },
];
const TALL = { full: 26, bars: 39, bare: 24, small: 17, dot: 8.5, "dot-small": 6.5, "dot-tiny": 4.9, "dot-least": 3.6, bonus: 28, chip: 21 };
export const ROUND = { dot: 3, "dot-small": 2.1, "dot-tiny": 1.6, "dot-least": 1.2 }; // radius of a node without room for its text
export const MARGIN = { left: 14, right: 14, top: 10, bottom: 10 };
const TRACK = 40; // width of the p and q hairlines at probability 1

const LEGIBLE = 0.8; // a drawing that is shrunk further names only the accepted nodes

/** How an item is drawn in a form: failed and unverified nodes as the form says, all others in full. */
function formOf(item, form, { chosen, shrink }) {
  if (item.kind !== "node") return item.kind === "chip" ? "chip" : "full";
  if (FAILED.has(item.node.status)) return (item.place < form.named && (form.group || shrink >= LEGIBLE)) || chosen === item.id ? form.failed : form.crowd || "dot";
  return item.node.status === "root" || JUDGED.has(item.node.status) || chosen === item.id
    ? form.kept || "full"
    : form.unverified;
}

/** Text of the accepted path shrinks less than the rest of a drawing that must become smaller. */
const sizeOf = (item, { u, shrink }) => u * (ROUND[item.form] || (FAILED.has(item.node.status) && shrink < LEGIBLE) ? shrink : Math.sqrt(shrink));

/** The size of a label: boxes shrink around it, and labels become shorter, but it stays at least 11 px. @param {number} size @param {number} u */
export const letters = (size, u) => Math.max(11, size * u);
const LINE = 14; // minimum height of a box with a label

/** @param {Item} item */
const hasBars = (item) => item.kind === "node" && item.node.status !== "root" && item.node.p !== null;

// Side in pixels of a picture code drawn as its patch, frame included, by form.
const PATCH = { full: 28, bare: 24, small: 17 };

/** Size of a code that is drawn as its patch: a square, with bars of the same width. @param {Item} item @param {number} u */
function measurePatch(item, u) {
  const bonus = item.kind === "bonus";
  const h = (bonus ? 24 : PATCH[item.form]) * u;
  const side = bonus ? 22 * u : h - (item.form === "small" ? 4 : 7) * u;
  const tall = TALL[bonus ? "bonus" : item.bars ? "bars" : item.form] * u + h - (item.form === "small" ? 15 : 20) * u;
  Object.assign(item, { label: "", side, h, tall, w: bonus ? 47 * u : h, track: h - 4 * u });
}

/** Form and height of one item, and all sizes of a patch. @param {Item} item */
export function shapeItem(item, form, room) {
  item.form = formOf(item, form, room);
  item.u = sizeOf(item, room);
  item.bars = hasBars(item) && item.form === "full";
  item.side = 0;
  item.track = TRACK * item.u;
  if (!ROUND[item.form] && item.kind !== "chip" && room.patched && room.patched(item.node)) {
    item.u = room.u * room.shrink;
    measurePatch(item, item.u);
    return;
  }
  const { u } = item;
  if (item.kind === "bonus") Object.assign(item, { h: 20 * u, tall: TALL.bonus * u });
  else if (item.kind === "chip") Object.assign(item, { h: Math.max(LINE, 17 * u), tall: Math.max(LINE + 2, TALL.chip * u) });
  else if (item.form === "full" || item.form === "bare") {
    Object.assign(item, { h: Math.max(LINE, 20 * u), tall: Math.max(LINE + 2, TALL[item.bars ? "bars" : item.form] * u) });
  } else if (item.form === "small") Object.assign(item, { h: Math.max(LINE, 15 * u), tall: Math.max(LINE + 1, TALL.small * u) });
  else Object.assign(item, { h: Math.min(7, TALL[item.form]) * u, tall: TALL[item.form] * u });
}

/** Label and width of an item that has its form. @param {Item} item */
export function labelItem(item, form, room) {
  if (item.side) return; // a patch
  const { u, node } = item;
  const most = JUDGED.has(node.status) || item.kind !== "node" ? 18 : form.chars;
  const named = !ROUND[item.form];
  item.label = !named ? "" : item.kind === "chip" ? node.text : format.token(node.text, Math.max(3, Math.round(most * room.shrink)));
  const text = (size, bold) => room.measure(item.label, letters(size, u), bold);
  if (item.kind === "bonus") item.w = text(13, true) + 27 * u;
  else if (item.kind === "chip") item.w = text(11) + 14 * u;
  else if (!named) item.w = (2 * ROUND[item.form] + 1) * u;
  else if (item.form === "small") item.w = Math.max(FAILED.has(node.status) ? 26 * u : 0, text(11) + 9 * u); // the cross covers no letter
  else item.w = Math.max(item.bars ? (TRACK + 4) * u : 28 * u, text(12.5) + 14 * u);
}
