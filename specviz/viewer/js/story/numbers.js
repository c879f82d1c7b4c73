// @ts-check
// The numbers of the story, in nanoseconds and bytes. All come from the recorded run; only the count of weights is the model's.
import { baselineTimes } from "../run/verdict.js";

/** The step that is told: four guesses kept, two refused after them, and the model's own word in their place. */
export const STEP = 4;

/** Averages over the whole run, whose formula for the speed-up is then exact. @param {Recording} trace @param {number} weights */
export function ofRun({ steps, ends, end, run }, weights) {
  const plain = baselineTimes(end && end.baseline);
  if (!plain || !run) throw new Error("the story's run has no autoregressive run");
  const rounds = steps.length;
  const sum = (/** @type {(step: Step) => number} */ of) => steps.reduce((all, step) => all + of(step), 0);
  const [draft, pass, round] = [sum(({ times }) => times[0]), sum(({ times }) => times[1]), ends[rounds - 1]].map((all) => all / rounds);
  const [tau, alone] = [sum(({ emitted }) => emitted.length) / rounds, plain.total / plain.times.length];
  const rows = steps[STEP].verified + 1;
  const each = (pass - alone) / (rows - 1);
  const bytes = weights * (run.dtype.endsWith("16") ? 2 : 4);
  return {
    tokens: plain.times.length, rounds, tau, alone, plain: plain.total, total: ends[rounds - 1], draft, pass, round, rest: round - draft - pass,
    speedup: (tau * alone) / round, rows, each, separate: rows * alone, doubled: alone / each, weights, bytes, rate: bytes / alone,
  };
}

/** What happens in the step that is told. @param {Recording} trace */
export function ofRound({ steps }) {
  const step = steps[STEP];
  const last = step.path[step.path.length - 1];
  const kept = step.path.map((id) => step.nodes[id].text);
  const odds = step.rows.get(last) || [];
  return {
    before: [...steps.slice(0, STEP).flatMap(({ pieces }) => pieces), ...kept].join("").split("\n").pop() || "",
    kept, last: step.nodes[last].text, bonus: step.bonus ? step.bonus.text : "",
    wrong: step.nodes.filter(({ parent, status }) => parent === last && status === "rejected").map(({ text }) => text),
    odds, others: odds.reduce((left, { p }) => left - (p || 0), 1),
    levels: Math.max(...step.nodes.map(({ depth, status }) => (status === "pruned" ? 0 : depth))),
    weighed: step.counts.drafted, sent: step.verified, guessing: step.times[0], verifying: step.times[1],
  };
}
