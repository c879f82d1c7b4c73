// @ts-check
// What a pass costs by its rows, and settings to begin with. Measured curves come with their source; nothing is guessed silently.
import { CORES, PASSES } from "./measured.js";

/** @typedef {{ name: string, words: string, source: string, curve: import("./bill.js").Curve, upto: number }} Machine `upto` is the last measured width. */

/** @param {string} name @param {string} words @param {typeof PASSES} passes @returns {Machine} */
const timed = (name, words, { rows, milliseconds, date, machine }) => ({
  name, words, curve: { rows, cost: milliseconds.map((one) => one / milliseconds[0]) }, upto: rows[rows.length - 1],
  source: `measured ${date}: ${milliseconds.map((one) => Number(one.toPrecision(3))).join(", ")} ms for ${rows.join(", ")} rows; ${machine}`,
});

/**
 * A roofline: reading 16-bit weights takes as long as computing with them for FLOP/s ÷ bytes per second rows.
 * @param {string} name @param {string} words @param {string} source @param {number} ridge @returns {Machine}
 */
const roofline = (name, words, source, ridge) => ({ name, words, source, curve: { rows: [1, ridge, 2 * ridge], cost: [1, 1, 2] }, upto: 1 });

/** The one to set by hand: a pass reads its weights in the time in which it can compute `ridge` rows. @param {number} ridge */
export const roof = (ridge) => roofline("roof", "A roofline to set", "a roofline, not measured: time = max(reading, computing), equal at the rows that you set", ridge);

/** From a device's published peaks. @param {string} name @param {string} words @param {number} flops in TFLOP/s @param {number} bandwidth in TB/s */
function published(name, words, flops, bandwidth) {
  const ridge = Math.round(flops / bandwidth);
  const peaks = `${flops} TFLOP/s ÷ ${bandwidth} TB/s = ${ridge} rows, weights in 16 bits`;
  return roofline(name, `${words}, roofline`, `a roofline from published peaks, not measured: ${peaks}. Real passes reach neither`, ridge);
}

/** @type {Machine[]} */
export const MACHINES = [
  timed("cores", "Two cores, 135 million weights", CORES),
  timed("gpu", "H200, 1.24 billion weights", PASSES),
  {
    name: "card", words: "RTX 3090, 27 billion weights", curve: { rows: [1, 8], cost: [1, 1 + 7 * 0.27] }, upto: 8,
    source: "published for llama.cpp: each further row costs 0.25 to 0.29 of a step (thc1006/qwen3.8-speculative-decoding-rtx3090)",
  },
  published("t4", "NVIDIA T4", 65, 0.32),
  published("h100", "NVIDIA H100 SXM", 989, 3.35),
  published("laptop", "Laptop, Apple M2", 3.6, 0.1),
  roof(100),
  {
    name: "flat", words: "vLLM, in the price of a level", curve: { rows: [1, 8], cost: [1, 1] }, upto: 8,
    source: "Llama 3.1 8B with EAGLE-3 in vLLM, one request (its issue 20780): a line through the times of a step with 2 to 7 guesses, 1.18 + 0.144 γ passes",
  },
];

/** The machine that serves the page, as its runs have measured it; empty until they have. @type {Machine[]} */
export const HERE = [];

/** Take what the server has measured, if anything. @param {null | { model: string, dtype: string, device: string, threads?: string, rows: number[], milliseconds: number[], at: number }} found */
export function measuredHere(found) {
  HERE.length = 0;
  if (!found) return;
  const { model, dtype, device, threads, rows, milliseconds, at } = found;
  const on = [device, threads && `threads: ${threads}`, model, dtype.replace("torch.", "")].filter(Boolean).join(", ");
  const date = `by runs here, last on ${new Date(at * 1000).toLocaleDateString()}`;
  HERE.push(timed("here", "This machine, measured", { rows, milliseconds, date, machine: on }));
}

/** @param {number} first @param {number} decay */
const decaying = (first, decay) => Array.from({ length: 12 }, (_, at) => first * decay ** at);

/**
 * Speed-ups that others measured, by draft length, drawn as dots: 7.07 ms a token alone, 4.32 to 4.29 ms with 2 to 7 guesses.
 * Of the tokens per pass, 2.36 to 3.54, the acceptance at depth 3 to 7 follows; the first two places share what they have together.
 */
const REPORTED = { accept: [0.77, 0.766, 0.73, 0.67, 0.83, 0.58, 0.57], dots: [4.32, 4.09, 4.05, 4.13, 4.2, 4.29].map((time, at) => ({ depth: at + 2, speedup: 7.07 / time })) };

/** @typedef {{ name: string, words: string, says: string, machine: string, accept: number[], draft: number, rest: number, width: number, batch: number, dots?: { depth: number, speedup: number }[] }} Scene */
/** @type {Scene[]} */
export const SCENES = [
  { name: "head", words: "Head", says: "One layer on top of the target drafts: cheap, and right most of the time.", machine: "cores", accept: decaying(0.76, 0.97), draft: 0.07, rest: 0.03, width: 1, batch: 1 },
  { name: "model", words: "Model", says: "A small model drafts: right more often, but each guess costs a fifth of a pass.", machine: "cores", accept: decaying(0.82, 0.99), draft: 0.2, rest: 0.03, width: 1, batch: 1 },
  { name: "copy", words: "Copying", says: "Guesses are looked up in the text: they cost nothing, and if the first one is right, so are the next.", machine: "cores", accept: [0.3, 0.7, 0.85, ...Array(9).fill(0.9)], draft: 0, rest: 0.03, width: 1, batch: 1 },
  { name: "busy", words: "Server", says: "Thirty-two requests share each pass. Their rows already keep the arithmetic busy.", machine: "roof", accept: decaying(0.76, 0.97), draft: 0.07, rest: 0.03, width: 1, batch: 32 },
  { name: "reported", words: "vLLM", says: "What others measured, as dots: EAGLE-3 for Llama 3.1 8B in vLLM. The curve is this formula with their costs.", machine: "flat", accept: [...REPORTED.accept], draft: 0.144, rest: 0.18, width: 1, batch: 1, dots: REPORTED.dots },
];
