// @ts-check
// The lanes of a race, made from traces: when a run and its autoregressive baseline had each token, and what is known of the text.
import * as format from "../kit/format.js";
import { findNode } from "./decode.js";
import { baselineTimes, pace, word } from "./verdict.js";

/** The run's lane, and its baseline's if one was timed. @param {Recording} trace */
function lanesOf(trace) {
  const { end, run, steps } = trace;
  const plain = baselineTimes(end && end.baseline);
  if (!steps.length || !run) return [];
  const tokens = steps.flatMap(tokensOf);
  const ends = trace.ends.map((at) => at - (readsPrompt(run) ? trace.ends[0] : 0));
  let written = 0;
  const bursts = steps.map((step, index) => ({ at: ends[index], upto: (written += step.emitted.length) }));
  const { grid } = run;
  /** @returns {RaceLane} */
  const lane = (rest) => ({ trace, grid, total: rest.bursts.at(-1).at, count: rest.bursts.at(-1).upto, ...rest });
  const mine = lane({ name: run.title || run.method, kind: "run", bursts, tokens, known: tokens.length, picture: end ? end.picture : "" });
  if (!plain || !end) return [mine];
  const alone = plain.ends.map((at, index) => ({ at, upto: index + 1 }));
  const other = lane({ name: "Autoregressive", kind: "baseline", bursts: alone, ...wordsOf(end, tokens) });
  return [Object.assign(mine, { rival: other }), Object.assign(other, { rival: mine })];
}

/** Whether the first step includes the time to read the prompt, as in a served run, but in none of ours. @param {Trace.Run} run */
function readsPrompt(run) {
  return run.tier === "served" || run.method.startsWith("vllm_");
}

/** @param {Step} step */
function tokensOf(step) {
  return step.emitted.map((token, place) => {
    const node = findNode(step, step.origins[place].id);
    return { token, text: step.pieces[place] || "", cell: (node && node.grid) || null };
  });
}

/** What the baseline wrote and how much of it is `known`: the run's own words, and after they diverge its own if recorded. */
function wordsOf({ baseline, picture }, tokens) {
  if (baseline.equal) return { tokens, known: tokens.length, picture };
  const { first_divergence: parting } = baseline;
  const common = parting ? Math.min(Math.max(0, parting.position), tokens.length) : 0;
  const own = baseline.pieces.map((text) => ({ text }));
  const whole = own.length || baseline.picture;
  return { tokens: [...tokens.slice(0, common), ...own], known: whole ? baseline.token_ns.length : common, common, picture: baseline.picture };
}

/** How many tokens a lane has by `clock`, in ns. */
export function countAt(lane, clock) {
  let low = 0,
    high = lane.bursts.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.bursts[middle].at <= clock) low = middle + 1;
    else high = middle;
  }
  return low ? lane.bursts[low - 1].upto : 0;
}

const ORDER = ["", "1st", "2nd", "3rd", "4th"];
const perToken = (lane) => lane.total / Math.max(1, lane.count);

/** The ratio of the rival's time per token to the lane's own: against its baseline the run's speed-up. */
export const ratio = (lane) => perToken(lane.rival) / Math.max(1e-9, perToken(lane));

/** The result of a finished lane: its place and, for a run, its verdict as one number. */
export function result(lane, place) {
  const said = word(ratio(lane));
  const against = lane.rival.kind === "baseline";
  if (said === "level") return lane.kind === "run" && against ? `level · ${ratio(lane).toFixed(2)}×` : "level";
  const leads = lane.kind === "run" && (against || said === "faster");
  return [place ? ORDER[place] || `${place}th` : "", leads ? pace(ratio(lane)) : ""].filter(Boolean).join(" · ");
}

/** Lanes of several runs: the runs first. If there are several baselines, each says whose it is. A run without one races against
 * the other run, if that has the same prompt; alone, it has no rival. */
export function lineUp(traces) {
  const found = traces.map(lanesOf).filter((pair) => pair.length);
  const rivals = (lane) => found.map(([other]) => other).filter((other) => other !== lane && other.trace.run.prompt === lane.trace.run.prompt);
  for (const [mine] of found) if (!mine.rival) [mine.rival] = rivals(mine);
  const pairs = found.filter(([mine]) => mine.rival);
  const baselines = pairs.filter((pair) => pair.length > 1);
  if (baselines.length > 1) for (const [mine, other] of baselines) other.name = `AR beside ${format.short(mine.name, 24)}`;
  return [...pairs.map(([mine]) => mine), ...baselines.map(([, other]) => other)];
}

/**
 * Places at the finish, from 1, by time per token, or by speed-up if every run has its own baseline: level lanes
 * share a place. There are none if the prompts differ, since those runs had different things to write.
 */
export function places(lanes) {
  const one = new Set(lanes.map(({ trace }) => trace.run.prompt)).size === 1;
  const apart = lanes.every(({ kind, rival }) => kind === "baseline" || rival.kind === "baseline");
  const values = lanes.map((lane) => (!apart ? perToken(lane) : lane.kind === "baseline" ? 1 : 1 / ratio(lane)));
  const better = (mine, other) => other < mine && word(mine / Math.max(1e-9, other)) === "faster";
  return values.map((mine) => (one ? 1 + values.filter((other) => better(mine, other)).length : null));
}
