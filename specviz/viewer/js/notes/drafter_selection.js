// @ts-check
// Several drafters, one chosen: their probabilities step by step, the ghosts of those that did not draft, and the delay queue.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { box, disc, line, text } from "../kit/svgKit.js";
import { noteOf } from "../run/decode.js";

const MOST_ARMS = 8,
  MOST_TOKENS = 12,
  MOST_STEPS = 400;
/** @param {number} value */
const share = (value = 0) => Math.min(1, Math.max(0, value));

/** @typedef {ReturnType<typeof read>} Data */

/** @param {Trace.DrafterSelectionNote} note */
function read(note) {
  const names = note.names.slice(0, MOST_ARMS);
  return {
    names,
    drafted: note.drafted,
    chances: names.map((_, arm) => share(note.chances[arm])),
    ghosts: note.ghosts.slice(0, MOST_ARMS).map((row) => row.slice(0, MOST_TOKENS).map(share)),
    expected: note.expected.slice(0, MOST_ARMS),
    tokens: note.texts.slice(0, MOST_TOKENS),
    waiting: note.waiting.slice(0, 24),
    ahead: Math.min(MOST_TOKENS, Math.max(1, note.ahead)),
    informed: note.informed,
  };
}

/** @param {Data} data */
function sentence(data) {
  return `${data.names[data.drafted]} drafts this round; its probability was ${format.probability(data.chances[data.drafted])}.`;
}

/** What choosing another arm would have brought, where that is known. @param {Data} data @param {Step} step */
function hindsightOf(data, step) {
  if (!data.expected.length) return "This chooser learns only from the arm that drafted, so the others were not evaluated.";
  if (step.veiled) return "What the other arms would have gained is known once the target has verified.";
  const best = data.expected.indexOf(Math.max(...data.expected));
  const other =
    best === data.drafted ? "No other arm would have gained more" : `${data.names[best]} would have gained the most`;
  const why = data.informed ? "" : " This chooser does not learn that.";
  return `${other}: ${format.probability(data.expected[best])} tokens along the text that was written.${why}`;
}

/** One row per arm: its probability of drafting over the steps, as height; a tick below where it drafted. A click goes to the step. @param {Data} data @param {Stage} stage */
function river(data, stage, tall) {
  const { u } = stage;
  const { steps } = stage.trace;
  const from = Math.max(0, Math.min(stage.cursor - MOST_STEPS / 2, steps.length - MOST_STEPS));
  const rounds = steps.slice(from, from + MOST_STEPS).map((round) => {
    const arms = noteOf(round, "drafter_selection");
    return arms && read(arms);
  });
  const cursor = stage.cursor - from;
  const left = 84 * u,
    top = 18 * u,
    wide = stage.column - left - 46 * u,
    pitch = wide / rounds.length,
    row = Math.min(60 * u, Math.max(20 * u, (tall - top) / data.names.length)),
    high = row - 9 * u;
  const edge = (at) => left + at * pitch;
  const bands = data.names.map((name, arm) => {
    const floor = top + arm * row + high;
    let over = `M${svgKit.round(left)} ${svgKit.round(floor)}`;
    const ticks = rounds.map((round, at) => {
      over += `V${svgKit.round(floor - high * ((round && round.chances[arm]) || 0))}H${svgKit.round(edge(at + 1))}`;
      return round && round.drafted === arm ? box(edge(at), floor + 2, Math.max(1.5, pitch - 0.6), 4 * u, "sv-drafted-tick", 0) : null;
    });
    const own = arm === data.drafted;
    return [
      text(stage, 0, floor - 3 * u, name, { bold: own }),
      line(left, floor, left + wide, floor, "sv-grid"),
      dom.s("path", { d: `${over}V${svgKit.round(floor)}Z`, class: `sv-arm sv-arm-${arm}` }),
      ticks,
      text(stage, stage.column, floor - 3 * u, `${Math.round(100 * data.chances[arm])} %`, { anchor: "end", bold: own, kind: own ? "" : "sv-mute" }),
    ];
  });
  const now = box(edge(cursor), top - 2, Math.max(2, pitch), data.names.length * row + 2, "sv-now-frame", 1);
  const spoken = data.names.map((name, arm) => `${name} ${format.probability(data.chances[arm])}`).join(", ");
  const label = text(stage, left, 11 * u, "probability of drafting, step by step", { kind: "sv-mute" });
  const figure = svgKit.frame(stage.column, top + data.names.length * row + 4, `Probabilities in this step: ${spoken}`, label, bands, now);
  figure.addEventListener("click", (event) => {
    const at = Math.floor((event.clientX - figure.getBoundingClientRect().left - left) / pitch);
    if (rounds[at]) stage.go(from + at);
  });
  return figure;
}

/** One row per arm: how likely each written token was to be accepted from its chain. Filled: the arm that actually drafted. @param {Data} data @param {Stage} stage */
function ghosts(data, stage) {
  const { u } = stage;
  const left = 84 * u,
    pitch = 22 * u,
    top = 34 * u;
  const cell = Math.min(46 * u, (stage.column - left - 46 * u) / Math.max(1, data.ahead));
  const heads = data.tokens.slice(0, data.ahead).map((word, place) => {
    const how = { anchor: "middle", kind: "sv-mute" };
    return text(stage, left + (place + 0.5) * cell, 26 * u, format.token(word, Math.max(3, Math.floor(cell / 8))), how);
  });
  const rows = data.names.map((name, arm) => {
    const y = top + (arm + 0.5) * pitch;
    const own = arm === data.drafted;
    const marks = (data.ghosts[arm] || []).map((chance, place) => {
      const x = left + (place + 0.5) * cell;
      return chance < 0.02 ? svgKit.cross(x, y, 3, "sv-drop-line") : disc(x, y, 2 + 6 * u * Math.sqrt(chance), own ? "sv-accepted-mark" : "sv-would-accept");
    });
    const length = data.expected[arm] === undefined ? "" : format.probability(data.expected[arm]);
    return [
      box(0, y - 6 * u, 10 * u, 12 * u, `sv-arm sv-arm-${arm}`),
      text(stage, 15 * u, y + 4 * u, name, { bold: own }),
      line(left, y, left + data.ahead * cell, y, "sv-grid"),
      marks,
      text(stage, stage.column - 2, y + 4 * u, length, { anchor: "end", bold: own }),
    ];
  });
  const spoken = data.names.map((name, arm) => `${name} ${format.probability(data.expected[arm])} tokens`).join(", ");
  const label = text(stage, 0, 11 * u, "tokens per round that each chain would have gained", { kind: "sv-mute" });
  return svgKit.frame(stage.column, top + data.names.length * pitch + 4, `In hindsight: ${spoken}`, label, heads, rows);
}

/** Starts of chains that later tokens still have to judge. @param {Data} data @param {Stage} stage */
function queue(data, stage) {
  const { u } = stage;
  const wide = Math.min(64 * u, (stage.column - 4) / Math.max(1, data.waiting.length));
  const parts = data.waiting.map((chain, at) => {
    const size = (wide - 8) / data.ahead;
    const cells = Array.from({ length: data.ahead }, (_, place) =>
      box(at * wide + place * size, 18 * u, size - 1, 12 * u, place < chain.known ? "sv-accepted-mark" : "sv-absent"),
    );
    return [cells, text(stage, at * wide, 44 * u, `from ${chain.place}`, { kind: "sv-mute" })];
  });
  const summary = data.waiting.length
    ? `delay queue: ${format.count(data.waiting.length, "chain")} still to be judged`
    : "delay queue: empty";
  const label = text(stage, 0, 11 * u, summary, { kind: "sv-mute" });
  return svgKit.frame(stage.column, (data.waiting.length ? 50 : 16) * u, summary, label, parts);
}

/** @param {Trace.DrafterSelectionNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const data = read(note);
  if (!data.names.length) return svgKit.caption("There was no arm to choose.");
  const { u } = stage;
  const judged = data.expected.length > 0 && !step.veiled;
  const hindsight = (40 + data.names.length * 22) * u;
  const key = svgKit.key(
    [box(-6, -2, 12, 4, "sv-drafted-tick", 0), "drafted"],
    ...(judged
      ? [
          [disc(0, 0, 6, "sv-would-accept"), "would have been accepted"],
          [svgKit.cross(0, 0, 3, "sv-drop-line"), "would not"],
        ]
      : []),
  );
  const rows = river(data, stage, stage.tall - 96 * u - (judged ? hindsight : 0));
  const rest = svgKit.more(stage, svgKit.caption(hindsightOf(data, step)), judged ? queue(data, stage) : null);
  return dom.h("div", {}, rows, judged ? ghosts(data, stage) : null, key, svgKit.caption(sentence(data)), rest);
}

noteRegistry.register("drafter_selection", { title: "Drafter selection", draw });
