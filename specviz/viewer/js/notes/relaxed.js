// @ts-check
// Relaxed acceptance: the codebook as a map with a drafted code's nearest latent codes shaded, and the sum that decided its fate.
import * as codes from "../kit/codes.js";
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { box, line, text } from "../kit/svgKit.js";
import { noteOf, sentChildren } from "../run/decode.js";

const judged = new WeakMap();

/** A note's judgements. Every step of a run is asked for them whenever another limit is tried, so they are read once. @param {Trace.RelaxedNote} note @param {Step} step */
export function read(note, step) {
  if (!judged.has(note)) judged.set(note, unpack(note, step));
  return judged.get(note);
}

/** @param {Trace.RelaxedNote} note @param {Step} step */
function unpack(note, step) {
  const rows = note.nodes.filter((row) => step.nodes[row.node]);
  return rows.map((row) => {
    const node = step.nodes[row.node];
    return {
      ...row,
      code: node.token,
      status: node.status,
      draw: node.draw,
      near: codes.list(row.near),
    };
  });
}

const isKept = (row) => row.status === "accepted" || row.status === "relaxed";
/** @param {Trace.RelaxedNote} note @returns {[string, number]} */
const setting = (note) => (note.delta === null ? ["λ", note.factor || 1] : ["δ", note.delta]);

/** How many nearest codes the map shades; an older trace has the ids of at most ten. */
export function shading(row, shaded) {
  const all = format.count(row.count, "nearest latent code");
  return shaded === row.count ? `${all} shaded` : `${shaded} of ${all} shaded`;
}

/** The codes that a judged one may stand for, and the others considered, if the map has them. @param {Book | null} book */
export function region(row, book) {
  const known = (list) => list.filter((code) => codes.has(book, code));
  return { inside: new Set(known(row.near.slice(0, row.count))), beyond: new Set(known(row.near.slice(row.count))) };
}

/** The code's neighbourhood on the map: every code is a dot in its own colour, with a line to those it stands for. @param {Book | null} book @param {Stage} stage @param {number} width @param {number} height */
function map(row, book, stage, width, height) {
  const [x, y] = codes.places(book, width, height);
  const { inside, beyond } = region(row, book);
  const parts = [];
  const own = codes.has(book, row.code) ? row.code : null;
  if (own !== null && inside.size) {
    const all = [own, ...inside];
    const edge = (at, most, side) => Math.min(most - 1, Math.max(1, side * Math.max(...all.map((code) => side * at(code))) + side * 9));
    const [left, right, top, bottom] = [edge(x, width, -1), edge(x, width, 1), edge(y, height, -1), edge(y, height, 1)];
    const ring = (kind) => box(left, top, right - left, bottom - top, kind, Math.min(right - left, bottom - top) / 2);
    parts.push(ring("sv-neighbourhood"), ring("sv-neighbourhood-edge"));
    for (const code of inside) parts.push(line(x(own), y(own), x(code), y(code), "sv-neighbour-line"));
  }
  const near = [...beyond].filter((code) => code !== own && !inside.has(code));
  for (const code of [...near, ...inside, ...(own === null ? [] : [own])]) {
    const inRegion = code === own || inside.has(code);
    const size = inRegion ? 9 : 7;
    const dot = box(x(code) - size / 2, y(code) - size / 2, size, size, inRegion ? "sv-code-dot" : "sv-code-dot sv-considered-code", 1.5);
    dot.setAttribute("fill", codes.colour(book, code) || "");
    if (code === own) dot.classList.add("sv-drafted-code");
    parts.push(dot);
  }
  const more = beyond.size ? `, ${beyond.size} more were considered` : "";
  const spoken = `Map of ${book.size} codes; ${shading(row, inside.size)} around the drafted code${more}.`;
  const flat = "Vectors have more than two directions, so neighbours on this map need not be alike. Spokes lead to the nearest latent codes.";
  parts.push(dom.s("g", {}, dom.s("title", {}, flat), text(stage, width - 4, height - 3, "mapped by their two main directions", { anchor: "end", kind: "sv-mute", size: 9 })));
  const figure = dom.s("svg", { class: "sv-figure", width, height, role: "img", "aria-label": `${spoken} ${flat}` }, parts);
  return dom.h("div", { class: "sv-codemap", style: `width:${width}px;height:${height}px` }, codes.ground(book, width, height), figure);
}

/** p alone, P with the nearest latent codes, and q with the draw, on one scale. @param {Trace.RelaxedNote} note @param {Stage} stage @param {number} width */
function bars(row, note, stage, width) {
  const { u } = stage;
  const room = 100 * u; // for “P = almost 1” beside a bar
  const total = row.p + row.moved;
  const greedy = row.draw === null;
  const widest = Math.max(total, row.p + row.limit, greedy ? 0 : row.q, 1e-9);
  const scale = (value) => Math.max(1, (value / widest) * (width - room));
  const parts = [];
  const high = 9 * u,
    gap = (stage.tall > 430 * u ? 38 : 29) * u;
  const label = (at, words_) => parts.push(text(stage, 0, at * gap + 11 * u, words_, { kind: "sv-mute" }));
  const amount = (at, wide, words_) => parts.push(text(stage, wide + 6, at * gap + 25 * u, words_, { bold: true }));
  label(0, "Drafted code alone");
  parts.push(box(0, 16 * u, scale(row.p), high, "sv-p-bar", 1));
  amount(0, scale(row.p), `p = ${format.probability(row.p)}`);
  label(1, `P, with ${format.count(row.count, "nearest latent code")}`);
  parts.push(box(0, gap + 16 * u, scale(row.p), high, "sv-p-bar", 1));
  let from = scale(row.p);
  const masses = row.mass.slice(0, row.count);
  const rest = row.moved - masses.reduce((sum, share) => sum + share, 0);
  for (const mass of [...masses, Math.max(0, rest)]) {
    const wide = (mass / widest) * (width - room);
    if (wide < 0.4) continue;
    parts.push(box(from + 0.6, gap + 16 * u, Math.max(0.5, wide - 0.6), high, "sv-neighbour-bar", 1));
    from += wide;
  }
  const edge = scale(row.p + row.limit);
  parts.push(line(edge, gap + 12 * u, edge, gap + 28 * u, "sv-limit-mark"));
  amount(1, Math.max(from, edge), `P = ${format.probability(total)}`);
  if (!greedy) {
    label(2, row.q === 1 ? "A certain candidate counts as q = 1" : "Drafter's q, and this step's draw");
    parts.push(box(0, 2 * gap + 16 * u, scale(row.q), high, "sv-q-bar", 1));
    const mark = scale(row.q) * row.draw;
    parts.push(line(mark, 2 * gap + 14 * u, mark, 2 * gap + 28 * u, "sv-draw-mark"));
    amount(2, scale(row.q), `q = ${format.probability(row.q)}`);
  }
  const height = (greedy ? 2 : 3) * gap + 2;
  return svgKit.frame(width, height, sentence(row, note), parts);
}

/** @param {Trace.RelaxedNote} note */
function sentence(row, note) {
  const [name, value] = setting(note);
  const total = row.p + row.moved;
  if (row.draw === null) {
    const outcome = isKept(row) ? "it leads, so it is kept" : "it still does not lead, so it is dropped";
    return `With ${format.count(row.count, "nearest latent code")} (${name} = ${value}) the code's share is ${format.probability(total)}: ${outcome}.`;
  }
  const bar = Math.min(1, total / row.q),
    strict = Math.min(1, row.p / row.q);
  const verdict = isKept(row)
    ? `Kept: draw ${format.probability(row.draw)} < P / q = ${format.probability(bar)}.`
    : `Rejected: draw ${format.probability(row.draw)} ≥ P / q = ${format.probability(bar)}.`;
  const exactly =
    row.draw < strict
      ? `The exact rule keeps it too: p / q = ${format.probability(strict)}.`
      : `The exact rule rejects it: p / q = ${format.probability(strict)}.`;
  return `${verdict} ${exactly}`;
}

/** The mass a code may take over under another limit, from the noted sums of its nearest latent codes. @param {string} name @param {number} value */
function massUnder(row, name, value) {
  const most = name === "δ" ? value : (value - 1) * row.p;
  let mass = 0;
  for (const [, sum] of row.sums) if (sum <= most + 1e-12) mass = Math.max(mass, sum);
  return mass;
}

const walked = new WeakMap();

/** Walk the recorded judgements again. `unsure`: the walk reached a node of which not every child was judged. @param {Trace.RelaxedNote} note @param {Step} step @param {string} name @param {number} value */
export function replayPath(note, step, name, value) {
  const key = name + value;
  if (!walked.has(note) || walked.get(note).key !== key) walked.set(note, { key, replay: walk(note, step, name, value) });
  return walked.get(note).replay;
}

/** @param {Trace.RelaxedNote} note @param {Step} step @param {string} name @param {number} value */
function walk(note, step, name, value) {
  const rows = new Map(read(note, step).map((row) => [row.node, row]));
  const path = [];
  let at = step.nodes[0];
  for (;;) {
    const children = sentChildren(step, at);
    const judged = children.map((id) => rows.get(id)).filter(Boolean);
    const accepted = judged.find((row) => row.draw !== null && row.draw < (row.p + massUnder(row, name, value)) / row.q);
    if (!accepted) return { path, count: path.length, unsure: judged.length < children.length };
    path.push(accepted.node);
    at = step.nodes[accepted.node];
  }
}

/** What another limit would change about the kept path of a step. @param {Trace.RelaxedNote} note @param {Step} step @param {string} name @param {number} value */
export function pathChanges(note, step, name, value) {
  const { path } = replayPath(note, step, name, value);
  return { kept: path.filter((id) => !step.path.includes(id)), lost: step.path.filter((id) => !path.includes(id)) };
}

/** The limit that the reader tries; it holds for this run and this parameter only. @param {Stage} stage @param {string} name */
export function triedLimit(stage, name) {
  const { limit } = stage.moments;
  return limit && limit.run === stage.trace.run && limit.name === name ? limit.value : null;
}

/** What the whole run would have kept: [now, recorded, whether some step is unsure]. @param {Stage} stage @param {string} name @param {number} value */
function overall(stage, name, value) {
  let all = 0,
    before = 0,
    open = false;
  for (const step of stage.trace.steps) {
    const recorded = noteOf(step, "relaxed");
    if (!recorded) continue;
    const replayed = replayPath(recorded, step, name, value);
    all += replayed.count;
    before += step.path.length;
    open = open || replayed.unsure;
  }
  return [all, before, open];
}

const APPROXIMATE = "Approximate: the recorded draft is judged again.";
const WHY =
  "Another limit would have changed later drafts; a sibling's p is the residual of earlier ones; and the sums " +
  "are known for 1–6, 8, 10, 12, 16 … nearest latent codes, so a looser limit may accept more. “Or more”: the walk reached codes that were not verified. In the tree, + marks codes that would be kept, × those lost.";

/** @param {Trace.RelaxedNote} note @param {Step} step @param {Stage} stage */
function slider(note, step, stage) {
  const rows = read(note, step);
  if (!rows.some((row) => row.draw !== null)) {
    const message = "No other limit can be tried at temperature 0: which other code would lead is not recorded.";
    return rows.length ? dom.h("small", { class: "sv-mute" }, message) : null;
  }
  const [name, value] = setting(note);
  const range = name === "δ" ? { min: 0, max: 1, step: 0.01 } : { min: 1, max: Math.max(10, 2 * value), step: 0.1 };
  const chosen = triedLimit(stage, name);
  const input = dom.h("input", { type: "range", ...range, value: chosen === null ? value : chosen, "aria-label": `another ${name}` });
  const status = dom.h("span", {});
  const tell = () => {
    const other = Number(input.value);
    const replayed = replayPath(note, step, name, other);
    const [all, before, open] = overall(stage, name, other);
    const mark = (count, unsure) => (unsure ? `${count} or more` : String(count));
    dom.say(
      status,
      `With ${name} = ${other} this step keeps ${mark(replayed.count, replayed.unsure)} (recorded: ${step.path.length}), the whole run ${mark(all, open)} (recorded: ${before}).`,
    );
  };
  input.addEventListener("input", () => {
    stage.moments.limit = { run: stage.trace.run, name, value: Number(input.value) };
    tell();
    stage.touch("overlay");
  });
  tell();
  return dom.h("div", { class: "sv-rejudge" }, dom.h("label", {}, `What if ${name} were `), input, status, dom.h("span", { class: "sv-mute" }, APPROXIMATE));
}

/** In the main tree: which codes would be kept or lost under the limit that is tried. @param {Trace.RelaxedNote} note @param {Step} step @param {Stage} stage */
function overlay(note, step, stage) {
  const [name] = setting(note);
  const value = triedLimit(stage, name);
  if (value === null) return null;
  const { kept: gained, lost } = pathChanges(note, step, name, value);
  const besideItem = (treeLayout, u, id, mark) => {
    const item = treeLayout.items.get(id);
    return item ? mark(item.x + item.w + 7 * u, item.y, 4 * u) : null;
  };
  return {
    over: (treeLayout, u) => [
      ...gained.map((id) => besideItem(treeLayout, u, id, (x, y, r) => line(x - r, y, x + r, y, "sv-would-keep"))),
      ...gained.map((id) => besideItem(treeLayout, u, id, (x, y, r) => line(x, y - r, x, y + r, "sv-would-keep"))),
      ...lost.map((id) => besideItem(treeLayout, u, id, (x, y, r) => svgKit.cross(x, y, r, "sv-would-lose"))),
    ],
  };
}

/** @param {Trace.RelaxedNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const rows = read(note, step);
  if (!rows.length) return svgKit.caption("No code was judged in this step.");
  const focused = noteRegistry.focus(rows, stage);
  const book = codes.of(stage.trace.run);
  const { u } = stage;
  const more = svgKit.more(stage, noteRegistry.chooser(rows.slice(0, 14), focused, stage), dom.h("p", { class: "sv-mute" }, WHY));
  const told = svgKit.caption(dom.h("b", {}, sentence(focused, note)));
  // A pane that is wide and low has the map beside the sums.
  const beside = book && stage.column > 430 && stage.tall < 400 * u;
  const wide = beside ? Math.floor(stage.column * 0.46) : stage.column;
  const height = beside ? Math.max(70 * u, stage.tall - 110 * u) : Math.min(wide * 0.72, stage.tall - 330 * u);
  // A lower map is unreadable: then only the patches below it are shown.
  const look = book ? [height < 64 * u ? null : map(focused, book, stage, wide, Math.min(height, wide * 0.72)), codes.kin(book, focused.near, focused.count)] : null;
  const sums = [bars(focused, note, stage, beside ? stage.column - wide - 16 : stage.column), beside ? null : told, slider(note, step, stage), more];
  return beside
    ? dom.h("div", {}, dom.h("div", { class: "sv-beside" }, dom.h("div", {}, look), dom.h("div", {}, sums)), told)
    : dom.h("div", {}, look, sums);
}

noteRegistry.register("relaxed", { title: "Nearest latent codes", draw, overlay });
