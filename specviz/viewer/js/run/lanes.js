// @ts-check
// Draws the lanes of the run overview: stacks of tokens, the phases of each step, the autoregressive baseline, and what was saved.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import { gain as gained } from "./verdict.js";

const COLOUR = {
  accepted: "accepted",
  relaxed: "relaxed",
  resampled: "resampled",
  bonus: "bonus",
  root: "ink",
  rejected: "rejected",
  skipped: "skip",
  pruned: "skip",
};

function text(pen, view, words, x, y, { align = "left", colour = "mute", size = 11.5, bold = false } = {}) {
  pen.font = `${bold ? 600 : 400} ${size * view.stage.u}px ${dom.SANS}`;
  pen.textAlign = align;
  pen.textBaseline = "middle";
  pen.fillStyle = view.paint[colour];
  pen.fillText(words, x, y);
}

/** @param {CanvasRenderingContext2D} pen @param {import("./overview.js").Overview} view */
export function names(pen, view) {
  const { at } = view;
  text(pen, view, "tokens", at.left - 8, (at.top + at.floor) / 2, { align: "right" });
  text(pen, view, "this run", at.left - 8, at.run + at.lane / 2, { align: "right" });
  text(pen, view, "AR baseline", at.left - 8, at.plain + at.lane / 2, { align: "right" });
  if (view.zoom.on) text(pen, view, "whole run", at.left - 8, (at.map + at.height) / 2, { align: "right" });
}

/** One block per token, from the bottom; a dashed foot if the target overruled the draft. @param {CanvasRenderingContext2D} pen @param {import("./overview.js").Overview} view @param {Step} step */
export function stack(pen, view, step, index, most) {
  const { at, paint, stage } = view;
  const x = view.x(stage.trace.starts[index]),
    wide = Math.max(1, view.x(stage.trace.ends[index]) - x);
  const gap = wide > 5 ? 1 : 0;
  const pitch = Math.min(8.5 * stage.u, (at.floor - at.top - 4) / most);
  step.origins.forEach(({ kind }, place) => {
    const y = at.floor - 3 - (place + 1) * pitch,
      w = wide - 2 * gap,
      h = pitch - Math.min(1.4, pitch * 0.25);
    pen.fillStyle = paint[COLOUR[kind] || "ink"];
    pen.fillRect(x + gap, y, w, h);
    if (kind === "relaxed" && w > 5 && h > 3) {
      pen.strokeStyle = paint.card;
      pen.lineWidth = 0.9;
      pen.strokeRect(x + gap + 1.4, y + 1.2, w - 2.8, h - 2.4);
    }
    if (kind === "bonus" && w > 8 && h > 4)
      diamond(pen, x + gap + w / 2, y + h / 2, Math.min(2.6, h / 2 - 0.6), paint.card);
  });
  if (!step.overruled) return;
  pen.fillStyle = paint.rejected;
  if (wide < 7) pen.fillRect(x, at.floor - 1, wide, 2);
  else
    for (let from = gap; from < wide - gap; from += 6)
      pen.fillRect(x + from, at.floor - 1, Math.min(3.6, wide - gap - from), 2);
}

/** @param {CanvasRenderingContext2D} pen @param {number} x @param {number} y */
function diamond(pen, x, y, r, colour) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.moveTo(x - r, y);
  pen.lineTo(x, y - r);
  pen.lineTo(x + r, y);
  pen.lineTo(x, y + r);
  pen.fill();
}

/** @param {CanvasRenderingContext2D} pen @param {import("./overview.js").Overview} view @param {Step} step */
export function phases(pen, view, step, index) {
  const { at, paint, stage } = view;
  let from = stage.trace.starts[index];
  const room = view.x(stage.trace.ends[index]) - view.x(from) > 4 ? 0.8 : 0;
  step.times.forEach((ns, place) => {
    const x = view.x(from),
      end = view.x(from + ns);
    from += ns;
    pen.fillStyle = paint[["draft", "verify", "judge", "judge", "host"][place]];
    if (ns) pen.fillRect(x, at.run, Math.max(0.3, end - x - (place === 4 ? room : 0)), at.lane);
  });
}

/** @param {CanvasRenderingContext2D} pen @param {import("./overview.js").Overview} view */
export function plain(pen, view) {
  const { at, paint } = view;
  if (!view.plain) return;
  pen.fillStyle = paint.plain;
  let from = 0;
  const gap = (view.plain.total / view.plain.times.length / at.span) * at.plot > 3 ? 1.2 : 0;
  for (const end of view.plain.ends) {
    const x = view.x(from);
    if (from > at.to) return;
    if (end >= at.from) pen.fillRect(x, at.plain, Math.max(0.4, view.x(end) - x - gap), at.lane);
    from = end;
  }
}

/** Times at the ends of both lanes; between the ends, the difference as a measured length. @param {CanvasRenderingContext2D} pen @param {import("./overview.js").Overview} view */
export function ends(pen, view) {
  const { at, stage } = view;
  if (stage.last < 0) return;
  const { total } = stage;
  if (seen(at, total)) text(pen, view, format.time(total), view.x(total) + 6, at.run + at.lane / 2, { colour: "ink", bold: true });
  if (!view.plain) {
    const how = at.plot < 380 ? "" : ": run with the baseline to see what was saved";
    const later = stage.trace.baseline || `not recorded${how}`;
    const label = stage.running ? "measured after the run, if requested" : later;
    text(pen, view, label, at.left + 6, at.plain + at.lane / 2);
  } else if (view.verdict) difference(pen, view);
}

/** Whether a time is among those that the lanes show. @param {number} ns */
const seen = (at, ns) => ns >= at.from && ns <= at.to;

/**
 * The verdict in words, its place between the ends of the lanes, and whether it fits there. The gap between the ends is the time
 * saved or lost only if both wrote equally many tokens and the difference is worth stating.
 * @param {import("./overview.js").Overview} view
 */
export function gain(view) {
  const { at, stage, plain: alone, verdict } = view;
  if (!alone || !verdict || stage.last < 0) return null;
  const { alike, word } = verdict;
  const other = view.x(alone.total);
  const slower = word === "slower";
  const label = gained(verdict) + (alike ? "" : " per token");
  const start = (slower ? other : view.x(stage.total)) + 62 * stage.u,
    end = slower ? at.width : other;
  const room = end - start > label.length * 6.9 * stage.u + (slower ? 0 : 20);
  const drawn = alike && word !== "level" && view.zoom.factor === 1;
  return { label, word, slower, start, end, other, drawn, fits: drawn && room };
}

/** Between the ends of the lanes: the time saved, or the time lost. If the words do not fit, the card's head has them. @param {CanvasRenderingContext2D} pen @param {import("./overview.js").Overview} view */
function difference(pen, view) {
  const { at, stage } = view;
  const difference = gain(view);
  if (!difference || !view.plain) return;
  const { label, slower, start, end, other, drawn, fits } = difference;
  if (seen(at, view.plain.total)) text(pen, view, format.time(view.plain.total), other + 6, at.plain + at.lane / 2);
  if (!drawn) return;
  const bold = true;
  if (slower && fits) text(pen, view, label, start, at.plain + at.lane / 2, { colour: "rejected", bold });
  if (slower) return;
  const y = at.run + at.lane / 2;
  pen.font = `600 ${11.5 * stage.u}px ${dom.SANS}`;
  bracket(pen, view, start, end, y, fits ? pen.measureText(label).width + 12 : 0);
  if (fits) text(pen, view, label, (start + end) / 2, y, { align: "center", colour: "bonus", bold });
}

/** A line with end strokes, and a gap in the middle for its text. @param {CanvasRenderingContext2D} pen @param {import("./overview.js").Overview} view @param {number} y */
function bracket(pen, view, from, to, y, hole) {
  if (to - from < 12) return;
  const open = hole / 2,
    middle = (from + to) / 2;
  pen.strokeStyle = view.paint.bonus;
  pen.lineWidth = 1.2;
  pen.beginPath();
  pen.moveTo(from, y - 4);
  pen.lineTo(from, y + 4);
  pen.moveTo(from, y);
  pen.lineTo(middle - open, y);
  pen.moveTo(middle + open, y);
  pen.lineTo(to, y);
  pen.moveTo(to, y - 4);
  pen.lineTo(to, y + 4);
  pen.stroke();
}

/** The stage's colours for the canvas, read from the same custom properties as the rest. */
export function palette(root) {
  const style = getComputedStyle(root);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    ink: read("sv-ink"),
    mute: read("sv-mute"),
    card: read("sv-card"),
    accepted: read("sv-acc"),
    relaxed: read("sv-relax"),
    rejected: read("sv-rej"),
    resampled: read("sv-resam"),
    bonus: read("sv-bonus"),
    skip: read("sv-skip"),
    draft: read("sv-draft"),
    verify: read("sv-verify"),
    judge: read("sv-judge"),
    host: read("sv-host"),
    plain: read("sv-plain"),
  };
}
