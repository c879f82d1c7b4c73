// @ts-check
// What speculation costs and brings, all times in passes of the target that score one row. The sums of specviz/trace/metrics.py and
// engine/cost.py: speed-up = τ · t_AR ÷ (t_draft + t_verify + t_rest).
import * as verdict from "../run/verdict.js";

/** @typedef {{ rows: number[], cost: number[] }} Curve Measured costs of a pass by its rows, ascending. */
/**
 * @typedef {{ accept: number[], draft: number, rest: number, width: number, second: number, batch: number, curve: Curve }} Setting
 * `accept` by depth, `draft` a level, `width` siblings a level of which each later one catches `second` of what its elders missed.
 */

/** Cost of a pass over `rows`, interpolated; beyond the last measured width at the last slope. @param {Curve} curve @param {number} rows */
export function passCost({ rows: widths, cost }, rows) {
  const found = widths.findIndex((width) => rows <= width);
  const place = found < 0 ? widths.length - 1 : found;
  if (place === 0) return cost[0];
  const [low, high] = [widths[place - 1], widths[place]];
  return cost[place - 1] + ((cost[place] - cost[place - 1]) * (rows - low)) / (high - low);
}

/** The chance that the token at depth 1, 2 … is accepted with all before it. @param {number[]} accept */
export function survival(accept) {
  let reached = 1;
  return accept.map((one) => (reached *= one));
}

/** The chance that a pass emits 1, 2 … tokens: accepted ones and the bonus. @param {number[]} accept */
export function lengths(accept) {
  const reached = [1, ...survival(accept), 0];
  return reached.slice(0, -1).map((one, depth) => one - reached[depth + 1]);
}

/** Tokens per pass, τ. @param {number[]} accept */
export const tau = (accept) => survival(accept).reduce((total, one) => total + one, 1);

/** The chance that one of a level's siblings is accepted. @param {number} accept @param {number} width @param {number} second */
const widened = (accept, width, second) => 1 - (1 - accept) * (1 - second) ** (width - 1);

/** The terms of a step with `depth` drafted levels. @param {Setting} setting @param {number} depth */
export function terms(setting, depth) {
  const { accept, draft, rest, width, second, batch, curve } = setting;
  const emitted = tau(accept.slice(0, depth).map((one) => widened(one, width, second)));
  const rows = 1 + depth * width;
  const verify = passCost(curve, batch * rows) / passCost(curve, batch);
  const drafting = depth * draft;
  const spent = drafting + verify + (depth ? rest : 0);
  return { tau: emitted, rows, draft: drafting, verify, rest: depth ? rest : 0, spent, speedup: emitted / spent };
}

/** The speed-up of every draft length, and the length that pays most. @param {Setting} setting */
export function speedups(setting) {
  const gains = [0, ...setting.accept].map((_, depth) => terms(setting, depth).speedup);
  return { gains, best: gains.indexOf(Math.max(...gains)) };
}

/** @param {number[]} numbers */
function median(numbers) {
  const sorted = [...numbers].sort((one, other) => one - other);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** The same figures of a run on the page; null without steps or an autoregressive run, or if a step has several passes (MuLo-SD). @param {Recording} trace */
export function ofRun(trace) {
  const { run, steps, end } = trace;
  const plain = verdict.baselineTimes(end && end.baseline);
  const found = verdict.of(trace);
  const uncut = steps.filter((step) => !step.cut);
  if (!run || !plain || !found || !uncut[0] || uncut[0].rule === "local") return null;
  const alone = plain.total / plain.times.length;
  const sum = (/** @type {(step: Step) => number} */ of) => uncut.reduce((all, step) => all + of(step), 0);
  const [draft, verify, spent] = [(step) => step.times[0], (step) => step.times[1], (step) => step.total].map((of) => sum(of) / uncut.length / alone);
  const emitted = sum((step) => step.emitted.length) / uncut.length;
  /** @type {Map<number, number[]>} */
  const byRows = new Map();
  for (const step of uncut) byRows.set(step.verified + 1, [...(byRows.get(step.verified + 1) || []), step.times[1] / alone]);
  const passes = [...byRows].sort(([one], [other]) => one - other).map(([rows, costs]) => ({ rows, cost: median(costs) }));
  const depth = sum((step) => Math.max(0, ...step.nodes.map((node) => (node.status === "pruned" ? 0 : node.depth)))) / uncut.length;
  const rest = spent - draft - verify;
  return { title: run.title, device: run.device, accept: further(uncut), depth, passes, tau: emitted, draft, verify, rest, predicted: emitted / spent, measured: found.speedup };
}

/** Of the steps that accepted at least 0, 1 … tokens, the share that accepted one more. @param {Step[]} steps */
export function further(steps) {
  const most = Math.max(0, ...steps.map(({ path }) => path.length));
  const reached = Array.from({ length: most + 1 }, (_, depth) => steps.filter(({ path }) => path.length >= depth).length);
  return reached.slice(1).map((many, depth) => many / reached[depth]);
}

/** A curve through the passes of a run, never falling. One row costs what the autoregressive run says. @param {{ rows: number, cost: number }[]} passes @returns {Curve | null} */
export function curveOf(passes) {
  const wide = passes.filter(({ rows }) => rows > 1);
  if (!wide.length) return null;
  let most = 1;
  return { rows: [1, ...wide.map(({ rows }) => rows)], cost: [1, ...wide.map(({ cost }) => (most = Math.max(most, cost)))] };
}
