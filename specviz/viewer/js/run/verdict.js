// @ts-check
// The one verdict on a run against its autoregressive run, and what it promises about its text: the twin of trace/metrics.py.
import { DRAWN_RULES, EQUAL_RULES, LEVEL } from "../generated.js";
import * as format from "../kit/format.js";

/** When the autoregressive baseline had each of its tokens, or null if it was not measured. */
export function baselineTimes(baseline) {
  const times = baseline ? baseline.token_ns.map((ns) => Math.max(0, ns)) : [];
  let sum = 0;
  const ends = times.map((ns) => (sum += ns));
  return sum ? { times, ends, total: sum } : null;
}

/** The word for a ratio of times per token: "faster", "slower" or, if the difference is negligible, "level". */
export const word = (ratio) => (ratio > 1 / LEVEL && ratio < LEVEL ? "level" : ratio > 1 ? "faster" : "slower");

/** Time per token against time per token, so lengths may differ; `saved`, in ns, is over the run's own tokens. Null without a baseline. @param {Recording} trace */
export function of(trace) {
  const plain = baselineTimes(trace.end && trace.end.baseline);
  const spent = trace.ends[trace.ends.length - 1];
  const tokens = trace.steps.reduce((sum, step) => sum + step.emitted.length, 0);
  if (!plain || !spent || !tokens) return null;
  const alone = (plain.total / plain.times.length) * tokens;
  return { speedup: alone / spent, word: word(alone / spent), saved: alone - spent, tokens, alike: tokens === plain.times.length };
}

/** The ratio with what it means: "2.20× as fast". */
export function pace(ratio) {
  const how = { faster: "as fast", slower: "the speed", level: "about as fast" }[word(ratio)];
  return `${ratio.toFixed(2)}× ${how}`;
}

/** "871 ms saved · 2.20×", or that there is no difference. */
export function gain({ speedup, saved, word: said }) {
  if (said === "level") return `about as fast · ${speedup.toFixed(2)}×`;
  return `${format.time(Math.abs(saved))} ${saved < 0 ? "lost" : "saved"} · ${speedup.toFixed(2)}×`;
}

/** What a run promises about its output, by the rules that judged it: "equal", "distribution" or "relaxed". */
export function promise({ run, steps }) {
  const rules = [...new Set(steps.map((step) => step.rule))];
  const strict = rules.some((rule) => rule !== "none") && rules.every((rule) => EQUAL_RULES.includes(rule));
  if (run.exactness === "relaxed" && !strict) return "relaxed";
  return rules.some((rule) => DRAWN_RULES.includes(rule)) ? "distribution" : "equal";
}

/** Where a run that promises the same tokens diverges from its baseline, and its logit gap; else empty. @param {Recording} trace */
export function parting(trace) {
  const { end, run } = trace;
  const found = end && end.baseline && end.baseline.first_divergence;
  if (!found || promise(trace) !== "equal") return "";
  const where = `after token ${found.position}`;
  const { gap } = found;
  if (gap === null || !run || run.sampling.temperature) return where;
  return `${where}, where two logits ${gap ? `are ${Number(gap.toPrecision(3))} apart` : "tie"}`;
}

/** What both texts have in common, in words; empty if no baseline was recorded. @param {Recording} trace */
export function texts(trace) {
  if (!trace.end || !trace.end.baseline) return "";
  const kind = promise(trace);
  if (kind === "relaxed") return "another distribution";
  if (kind === "distribution") return "other draws from the same distribution";
  const parts = parting(trace);
  return parts ? `same text up to token ${parts.slice("after token ".length)}` : "same text";
}

/** A finer number format, in which rounding would not make the texts differ. */
export const finer = (dtype) => (dtype === "float32" || dtype === "float64" ? "float64" : "float32");
