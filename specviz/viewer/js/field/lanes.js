// @ts-check
// The lanes of all methods on one clock: their order, the part that is in sight, and where two of them begin a step alike.
import * as format from "../kit/format.js";

/** A run as the server sends it: steps of [time in ns, accepted tokens, emitted pieces], and the times of its autoregressive tokens. @typedef {{ name: string, method: string, title: string, promise: string, parting: string, tau: number | null, speedup: number | null, plain: number[], steps: [number, number, string[]][] }} Run */
/** The same with its clock: `ends` of the steps in ns, and `upto`, the tokens written by then. @typedef {Run & { ends: number[], upto: number[], total: number, words: string }} Lane */
/** The part of the clock in sight, in ns. @typedef {{ from: number, span: number }} View */

const PROMISES = { equal: "exact", distribution: "exact", relaxed: "relaxed" };
/** @param {Run} run */
export const promise = (run) => PROMISES[/** @type {keyof typeof PROMISES} */ (run.promise)] || run.promise;

/** @param {Run} run @returns {Lane} */
export function prepare(run) {
  let [at, count] = [0, 0];
  const ends = run.steps.map(([ns]) => (at += ns));
  const upto = run.steps.map(([, , pieces]) => (count += pieces.length));
  return { ...run, ends, upto, total: at, words: `${run.title} ${run.method} ${promise(run)}`.toLowerCase() };
}

/** The autoregressive run as a lane: of those timed beside the runs, the one of median length. @param {Run[]} runs @returns {Lane | null} */
export function baseline(runs) {
  const total = (/** @type {Run} */ run) => run.plain.reduce((sum, ns) => sum + ns, 0);
  const timed = runs.filter((run) => run.plain.length).sort((a, b) => total(a) - total(b));
  const [found] = timed.slice((timed.length - 1) >> 1);
  if (!found) return null;
  const words = found.steps.flatMap(([, , pieces]) => pieces);
  const steps = found.plain.map((ns, place) => /** @type {[number, number, string[]]} */ ([ns, 0, [words[place] || ""]]));
  return prepare({ ...found, name: "", method: "", title: "One at a time", promise: "equal", parting: "", tau: 1, speedup: 1, steps, plain: [] });
}

const perToken = (/** @type {Lane} */ { total, upto }) => total / Math.max(1, upto[upto.length - 1] || 0);
/** @type {Record<string, (a: Lane, b: Lane) => number>} */
const ORDERS = {
  time: (a, b) => perToken(a) - perToken(b),
  tau: (a, b) => (b.tau || 0) - (a.tau || 0),
  method: (a, b) => a.title.localeCompare(b.title),
};

/** The lanes whose name has every word of `query`, in order of time per token, τ or method. @param {Lane[]} lanes @param {string} by @param {string} query */
export function ordered(lanes, by, query) {
  const asked = query.toLowerCase().split(/\s+/).filter(Boolean);
  return lanes.filter(({ words }) => asked.every((word) => words.includes(word))).sort(ORDERS[by] || ORDERS.time);
}

/** The step during which a time passes. @param {Lane} lane @param {number} ns */
export function stepAt({ ends }, ns) {
  const at = ends.findIndex((end) => end > ns);
  return at < 0 ? ends.length - 1 : at;
}

/** The step that writes the token at a position. @param {number[]} upto @param {number} token */
export function stepOf(upto, token) {
  const at = upto.findIndex((count) => count > token);
  return at < 0 ? upto.length - 1 : at;
}

/** The positions at which both runs begin a step after the same text, in tokens. @param {Lane} one @param {Lane} other */
export function together(one, other) {
  const [mine, theirs] = [one, other].map(({ steps }) => steps.flatMap(([, , pieces]) => pieces));
  const parted = mine.findIndex((piece, place) => piece !== theirs[place]);
  const same = parted < 0 ? mine.length : parted;
  const begins = new Set([0, ...other.upto.slice(0, -1)]);
  return [0, ...one.upto.slice(0, -1)].filter((at) => at <= same && begins.has(at));
}

/** The view after zooming by `factor` around a time, within the whole clock. @param {View} view @param {number} factor @param {number} at @param {number} whole @returns {View} */
export function zoomed({ from, span }, factor, at, whole) {
  const next = Math.min(whole, Math.max(whole / 64, span / factor));
  return moved({ from: at - ((at - from) * next) / span, span: next }, 0, whole);
}

/** @param {View} view @param {number} by @param {number} whole @returns {View} */
export const moved = ({ from, span }, by, whole) => ({ from: Math.min(Math.max(0, from + by), whole - span), span });

/** Draw a lane in `width` by `height` pixels: a block per step, as high as it wrote tokens, or its words once they fit. What is after `clock` is pale.
 * @param {import("../share/race.js").Pen} pen @param {Lane} lane @param {{ width: number, height: number, view: View, clock: number, most: number, paint: Record<string, string>, font: string }} how */
export function draw(pen, lane, { width, height, view, clock, most, paint, font }) {
  const x = (/** @type {number} */ ns) => ((ns - view.from) / view.span) * width;
  const unit = (height - 2) / most;
  pen.textBaseline = "middle";
  pen.fillStyle = paint.track;
  pen.fillRect(0, height - 1, Math.max(0, x(lane.total)), 1);
  lane.steps.forEach(([ns, accepted, pieces], at) => {
    const start = lane.ends[at] - ns;
    const [left, right] = [x(start), x(lane.ends[at])];
    if (right < 0 || left > width) return;
    const wide = Math.max(0.6, right - left - (right - left > 4 ? 1 : 0));
    pen.globalAlpha = start < clock ? 1 : 0.22;
    const kept = lane.name ? Math.min(accepted, pieces.length) : 0;
    const main = lane.name ? (lane.promise === "relaxed" ? paint.relaxed : paint.accepted) : paint.plain;
    if (wide > 44) {
      pen.fillStyle = main;
      pen.fillRect(left, 1, 2, height - 2);
      pen.globalAlpha *= 0.16;
      pen.fillRect(left, 1, wide, height - 2);
      pen.globalAlpha = start < clock ? 1 : 0.4;
      pen.fillStyle = paint.ink;
      pen.font = font;
      const words = format.plain(pieces.join("")).replace(/\n/g, "⏎");
      pen.fillText(format.short(words, Math.floor((wide - 6) / 6.7)), left + 5, height / 2 + 0.5);
    } else {
      pen.fillStyle = main;
      pen.fillRect(left, height - 1 - unit * kept, wide, unit * kept);
      pen.fillStyle = lane.name ? paint.bonus : main;
      pen.fillRect(left, height - 1 - unit * pieces.length, wide, unit * (pieces.length - kept));
    }
  });
  pen.globalAlpha = 1;
  const end = x(lane.total);
  pen.font = font;
  pen.fillStyle = paint.mute;
  if (clock >= lane.total && end < width - 52 && end > -60) pen.fillText(format.time(lane.total), end + 6, height / 2 + 0.5);
}
