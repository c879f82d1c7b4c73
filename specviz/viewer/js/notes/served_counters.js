// @ts-check
// A server's own counters over time: of its drafts so far, how many had their first, second, … token accepted.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { line, text } from "../kit/svgKit.js";
import { noteOf } from "../run/decode.js";

const MOST_PLACES = 8;
const STYLES = 5; // of sv-curve

/** Every sample of the run up to and with `step`. @param {Step} step @param {Stage} stage */
function samples(step, stage) {
  /** @type {Trace.CounterSample[]} */
  const found = [];
  for (const one of stage.trace.steps.slice(0, step.index + 1)) {
    const note = noteOf(one, "served_counters");
    if (note) found.push(...note.samples);
  }
  return found.filter(({ ms, drafts }) => ms > 0 && drafts > 0);
}

const percent = (part) => `${Math.round(100 * part)} %`;
const share = (sample, place) => Math.min(1, Math.max(0, (sample.accepted[place] || 0) / sample.drafts));

/** @param {Trace.ServedCountersNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const all = samples(step, stage);
  const last = all.at(-1);
  if (!last || !last.accepted.length) return svgKit.caption("The server's counters have not changed yet.");
  const { u, column: width } = stage;
  const height = Math.min(width * 0.6, Math.max(120 * u, stage.tall - 110 * u));
  const [left, right, top, floor] = [40 * u, width - 52 * u, 10 * u, height - 20 * u];
  const x = (ms) => left + ((right - left) * ms) / last.ms;
  const y = (part) => floor - (floor - top) * part;
  /** @type {Child[]} */
  const parts = [0, 0.5, 1].map((part) => [
    line(left, y(part), right, y(part), "sv-grid"),
    text(stage, left - 6, y(part) + 4, percent(part), { anchor: "end", kind: "sv-mute" }),
  ]);
  const places = Math.min(MOST_PLACES, last.accepted.length);
  let below = -Infinity;
  for (let place = 0; place < places; place += 1) {
    const points = all.map((sample) => [svgKit.round(x(sample.ms)), svgKit.round(y(share(sample, place)))]);
    parts.push(dom.s("path", { d: `M${points.map((point) => point.join(" ")).join("L")}`, class: `sv-curve sv-curve-${place % STYLES}` }));
    // Later places are accepted less often, so labels are pushed down where they would touch.
    below = Math.max(below + 12 * u, points[points.length - 1][1] + 4);
    parts.push(text(stage, right + 7, below, `${place + 1}: ${percent(share(last, place))}`, { bold: true }));
  }
  parts.push(text(stage, left, height - 3, "0 s", { kind: "sv-mute" }), text(stage, right, height - 3, `${(last.ms / 1e3).toFixed(1)} s`, { anchor: "end", kind: "sv-mute" }));
  const rates = Array.from({ length: places }, (_, place) => percent(share(last, place))).join(", ");
  const words =
    `Of ${format.count(last.drafts, "draft")} so far the server kept, by position in the draft: ${rates}. ` +
    `These are the server's counters, sampled ${format.count(all.length, "time")}; they include the requests of others.`;
  return dom.h("div", {}, svgKit.frame(width, height, words, parts), svgKit.caption(words));
}

noteRegistry.register("served_counters", { title: "Acceptance over time", draw });
