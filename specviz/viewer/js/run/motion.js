// @ts-check
// One step as a motion on a clock from 0 to 1: when each node is drafted, scored by the pass and judged, and when the text moves.
//
// The four phases have their recorded shares of the clock if each is long enough to be seen, else those of a teaching scale.
// The order within a phase is the step's own: levels of the draft, the target's one pass, verdicts as the rule walks the tree.
import { count } from "../kit/format.js";
import * as labels from "../kit/labels.js";
import { noteOf } from "./decode.js";

const TEACHING = { draft: 34, verify: 18, judge: 26, commit: 22 }; // percent of the motion
const LEAST = 0.1; // of the motion: a shorter phase is over before it is understood
const LANDED = 0.62; // of the commit phase, after which all tokens are in the output; the rest is time to look at it
const known = new WeakMap();

/** The motion of a step. @param {Step} step */
export function of(step) {
  if (!known.has(step)) known.set(step, plan(step));
  return known.get(step);
}

/** @param {Step} step */
function plan(step) {
  const depths = step.nodes.slice(1).map((node) => node.depth);
  const motion = { levels: Math.max(0, ...depths), order: verdicts(step), sent: step.counts.sent };
  Object.assign(motion, phases(step, motion));
  const span = Object.fromEntries(motion.phases.map(({ name, from, to }) => [name, { from, to, long: to - from }]));
  motion.moments = [];
  motion.born = new Map();
  motion.judged = new Map();
  if (span.draft) draft(step, motion, span.draft);
  motion.verify = span.verify;
  motion.moments.push({ at: span.verify.from, phase: "verify" });
  if (span.judge) judge(step, motion, span.judge);
  if (span.commit) {
    const { from, long } = span.commit;
    motion.moments.push({ at: from, phase: "commit" });
    motion.commit = span.commit;
    motion.bonus = { from, to: from + 0.15 * long };
    motion.landed = from + LANDED * long;
  }
  return motion;
}

/** Where each phase lies on the motion's clock, and on the recorded one in nanoseconds from the step's start. */
function phases(step, { levels, order }) {
  const [drafting, verifying, judging, ...after] = step.times;
  /** @type {[string, boolean, number][]} */
  const parts = [
    ["draft", levels > 0, drafting],
    ["verify", true, verifying],
    ["judge", order.length > 0, judging],
    ["commit", !step.veiled, after.reduce((sum, ns) => sum + ns, 0)],
  ];
  const present = parts.filter(([, is]) => is);
  const teaching = present.some(([, , ns]) => ns < LEAST * step.total) || !step.total;
  const weight = ([name, , ns]) => (teaching ? TEACHING[name] : ns);
  const whole = present.reduce((sum, part) => sum + weight(part), 0);
  let [at, ns] = [0, 0];
  const spans = [];
  for (const part of parts) {
    // The time of a phase without anything to show is added to the next one.
    const start = spans.length ? ns : 0;
    ns += part[2];
    if (part[1]) spans.push({ name: part[0], from: at, to: (at += weight(part) / whole), start, end: ns });
  }
  const last = spans[spans.length - 1];
  Object.assign(last, { to: 1, end: step.total });
  return { phases: spans, teaching };
}

function draft(step, motion, { from, to, long }) {
  const pruned = step.counts.pruned > 0;
  const until = pruned ? from + 0.84 * long : to;
  const slot = (until - from) / motion.levels;
  /** @type {number[][]} */
  const levels = Array.from({ length: motion.levels }, () => []);
  for (const node of step.nodes.slice(1)) levels[node.depth - 1].push(node.id);
  levels.forEach((ids, at) => {
    const start = from + at * slot;
    motion.moments.push({ at: start, phase: "draft", level: at + 1 });
    ids.forEach((id, place) => {
      const begin = start + (0.6 * slot * place) / ids.length;
      motion.born.set(id, { from: begin, to: begin + 0.35 * slot });
    });
  });
  if (!pruned) return;
  motion.moments.push({ at: until, phase: "prune" });
  motion.pruning = { from: until, to: until + 0.6 * (to - until) };
  for (const node of step.nodes) if (node.status === "pruned") motion.judged.set(node.id, motion.pruning);
}

function judge(step, motion, { from, long }) {
  const slot = long / motion.order.length;
  motion.order.forEach((id, place) => {
    const at = from + place * slot;
    motion.moments.push({ at, phase: "judge", verdict: place + 1, node: id });
    motion.judged.set(id, { from: at, to: at + 0.5 * slot });
  });
  const kept = keptBelow(step);
  for (const node of step.nodes) {
    if (node.status !== "skipped") continue;
    // Decided by the verdict on an ancestor or on a sibling, whichever left it out; else by the end of the walk.
    const cause = causeOf(step, node, kept);
    const { from: at } = motion.judged.get(cause ?? motion.order[motion.order.length - 1]);
    motion.judged.set(node.id, { from: at + 0.35 * slot, to: at + 0.85 * slot });
  }
}

/** @param {AnyNode} node */
const decided = (node) => !["root", "skipped", "pruned"].includes(node.status);

/** For each node on the accepted path, which child was accepted. @param {Step} step */
const keptBelow = (step) => new Map(step.path.map((id) => [step.nodes[id].parent, id]));

/** @param {Step} step @param {TreeNode} node @param {Map<number, number>} kept */
function causeOf(step, node, kept) {
  for (let one = node; one.id > 0; one = step.nodes[one.parent]) {
    if (decided(one)) return one.id;
    const sibling = kept.get(one.parent);
    if (sibling !== undefined && decided(step.nodes[sibling])) return sibling;
  }
  return null;
}

/** Ids of the judged nodes in the order of their verdicts: in a note's order of visits, else down from the root, guess by guess. @param {Step} step */
function verdicts(step) {
  const judged = step.nodes.filter(decided).map((node) => node.id);
  const note = noteOf(step, "traversal");
  const last = new Map(note && note.visits.map((visit, at) => [visit.node, at]));
  if (last.size) return judged.sort((a, b) => (last.get(a) ?? -1) - (last.get(b) ?? -1) || a - b);
  const kept = keptBelow(step);
  const order = new Set();
  for (let at = 0; at >= 0; at = kept.get(at) ?? -1) {
    for (const id of step.nodes[at].children) if (decided(step.nodes[id])) order.add(id);
  }
  return [...order, ...judged.filter((id) => !order.has(id))];
}

const part = (motion, test) => motion.phases.find(test) || motion.phases[motion.phases.length - 1];
/** @param {number} x @param {number} high */
const between = (x, from, to, low, high) => (to > from ? low + (Math.min(Math.max(x, from), to) - from) * ((high - low) / (to - from)) : low);

/** The recorded clock of the step, in nanoseconds, at a time of the motion, and the reverse. */
export function recorded(motion, t) {
  const { from, to, start, end } = part(motion, (one) => t < one.to);
  return between(t, from, to, start, end);
}
/** @param {number} ns */
export function timeOf(motion, ns) {
  const { from, to, start, end } = part(motion, (one) => ns < one.end);
  return between(ns, start, end, from, to);
}

/** Index of the motion's current moment: the last one that has begun. */
export function momentAt(motion, t) {
  let at = 0;
  while (at + 1 < motion.moments.length && motion.moments[at + 1].at <= t) at += 1;
  return at;
}

/** The time at which everything that a moment shows has appeared. @param {number} moment */
export const settled = (motion, moment) => (moment + 1 < motion.moments.length ? motion.moments[moment + 1].at - 1e-6 : 1);

/** Milliseconds that a step takes in slow motion: longer for more levels and more verdicts, within a class's patience. */
export const pace = ({ levels, order }) => Math.min(10000, Math.max(4000, 2600 + 260 * levels + 380 * order.length));

/** What is going on at a moment, in words. @param {Step} step @param {number} moment */
export function label(step, motion, moment) {
  const { phase, level, verdict } = motion.moments[moment];
  if (phase === "draft") return `Drafting, level ${level} of ${motion.levels}`;
  if (phase === "prune") return `Pruning: ${motion.sent} of ${labels.drafted(step)} are sent to the target`;
  if (phase === "verify") return motion.sent ? `Verifying: one pass over ${count(motion.sent, "node")}` : "Verifying: one pass, no draft";
  if (phase === "judge") return `Judging, verdict ${verdict} of ${motion.order.length}`;
  return `Committed: ${count(step.emitted.length, "token")}`;
}

const shown = new WeakMap();

/** The step as far as it is known at a moment: nodes not yet drafted are "coming", those not yet judged "drafted", without their numbers. @param {Step} step @param {number} moment */
export function seen(step, motion, moment) {
  const { phase } = motion.moments[moment];
  const last = shown.get(step);
  if (last && last.moment === moment) return last.seen;
  const until = settled(motion, moment);
  const scored = !["draft", "prune"].includes(phase);
  const nodes = step.nodes.map((node) => {
    const judged = motion.judged.get(node.id);
    if (!node.id || phase === "commit" || (judged && judged.from <= until)) return node;
    const born = motion.born.get(node.id);
    const status = born && born.from > until ? "coming" : "drafted";
    return { ...node, status, p: scored ? node.p : null, threshold: null, draw: null };
  });
  const over = phase === "commit";
  const view = { ...step, nodes, bonus: over ? step.bonus : null, veiled: step.veiled || !over };
  shown.set(step, { moment, seen: view });
  return view;
}
