// @ts-check
// Registry of the note panels: each note type has its own drawing; a note of an unknown type is listed as data.
import * as codes from "./codes.js";
import * as dom from "./dom.js";
import * as format from "./format.js";
import * as svgKit from "./svgKit.js";

const known = new Map();

/** `drawing` has a title and draw(data, step, stage) returning elements. One file in js/notes/ for each note type. */
export const register = (type, drawing) => known.set(type, drawing);

/** A note as received: run/decode.js sets aside one that does not match its type. @param {Note} note @returns {{ type: string }} */
const source = (note) => (note.type === null ? note.source : note);

/** @param {Note | null} note */
export const title = (note) => (note && known.has(source(note).type) ? heading(note) : "Method");

// Notes that many methods leave, or that make sense only after another one.
const LATER = new Set(["step_embeddings", "growth", "coarse_codes", "picture", "canvas"]);

/** The notes of the step in reading order: the method's own first. @param {Step} step */
const ordered = (step) => (step ? [...step.notes].sort((a, b) => Number(LATER.has(source(a).type)) - Number(LATER.has(source(b).type))) : []);

/** The note to show: the one that the reader chose, else the first. @param {Stage} stage */
export function chosen(stage) {
  const notes = ordered(stage.step);
  return notes.find((note) => source(note).type === stage.selectedNote) || notes[0] || null;
}

/** What the shown note adds to the main tree: under, over (treeLayout, u) => elements, dim (item) => true; or null. @param {Stage} stage */
export function overlay(stage) {
  const note = stage.tab === "method" ? chosen(stage) : null;
  const drawing = note ? known.get(note.type) : null;
  if (!drawing || !drawing.overlay) return null;
  try {
    return drawing.overlay(note, stage.step, stage);
  } catch {
    return null; // a damaged note is listed in its pane; the tree stays as it is
  }
}

/** Draw the shown note below `above`, elements about the current moment. */
export function draw(pane, stage, above = []) {
  const all = ordered(stage.step);
  // The picture itself is beside the tree, so its rows are shown only if there is no other note.
  const notes = all.length > 1 ? all.filter((entry) => entry.type !== "canvas") : all;
  const note = chosen(stage);
  if (!note) return pane.replaceChildren(...above, dom.h("p", { class: "sv-mute" }, "The method recorded no note for this step."));
  const fill = (tall) => {
    stage.pointing = stage.settling = null; // handlers of the previous drawing
    Object.assign(stage, { tall, folds: [] });
    const head = notes.length > 1 ? choice(notes, note, stage) : null;
    const named = head || known.has(source(note).type) ? null : dom.h("h3", {}, heading(note));
    pane.replaceChildren(...above, dom.h("section", { class: "sv-note" }, head, named, drawNote(note, stage)));
  };
  stage.column = Math.max(230, pane.clientWidth - 26);
  // On a phone a pane is as tall as its content; elsewhere a picture shrinks to leave room for the text, so that nothing scrolls.
  let tall = stage.size === "phone" ? 420 : pane.clientHeight - 22;
  // If the text alone is too tall, its lines are set closer.
  for (const close of [false, false, true, true, true]) {
    pane.classList.toggle("sv-close", close);
    fill(tall);
    const over = stage.size === "phone" ? 0 : pane.scrollHeight - pane.clientHeight;
    if (!(over > 0)) break;
    tall -= Math.ceil(1.3 * over); // a picture can shrink only in part
  }
  for (const fold of stage.folds) fold.open = Boolean(stage.unfolded);
  return undefined;
}

/** @param {Stage} stage */
const choice = (notes, active, stage) =>
  dom.h(
    "div",
    { class: "sv-chooser sv-note-tabs" },
    notes.map((note) =>
      dom.button(heading(note), "Show this note", () => stage.set({ selectedNote: source(note).type }), {
        "aria-pressed": String(note === active),
      }),
    ),
  );

/** @param {Note} note */
function heading(note) {
  const { type } = source(note);
  return known.has(type) ? known.get(type).title : `Note “${format.short(type, 40)}”`;
}

/** @param {Stage} stage */
function drawNote(note, stage) {
  const came = source(note);
  if (!known.has(came.type)) return rawNote(came);
  try {
    if (came === note) return dom.withinBudget(() => known.get(note.type).draw(note, stage.step, stage));
  } catch {
    // The message below reports it.
  }
  const message = "This note does not match its type, or needs more than a page can draw. Its data, as received:";
  return dom.h("div", {}, svgKit.caption(message), rawNote(came));
}

function rawNote(note) {
  const rows = Object.entries(note)
    .filter(([name]) => name !== "type")
    .slice(0, 12);
  return dom.h(
    "dl",
    { class: "sv-raw-note" },
    rows.map(([name, value]) => [
      dom.h("dt", {}, format.short(name, 40)),
      dom.h("dd", {}, format.short(JSON.stringify(value) || "", 240)),
    ]),
  );
}

/** The row of a note about the chosen node's position: its own, else its parent's, else the first. @param {Stage} stage */
export function focus(rows, stage) {
  const { selected } = stage;
  const at = (id) => rows.find((row) => row.node === id);
  return (selected && (at(selected.id) || at(selected.parent))) || rows[0];
}

/** Buttons that choose the row to look at, by picking its node in the tree. @param {Stage} stage */
export function chooser(rows, focused, stage) {
  if (rows.length < 2) return null;
  return dom.h(
    "div",
    { class: "sv-chooser" },
    rows.map((row) => {
      const node = stage.step.nodes[row.node];
      return dom.button(
        codes.named(codes.of(stage.trace.run), format.token(node ? node.text : String(row.node), 10)),
        `the row used after this node`,
        () => stage.pick(row.node),
        { "aria-pressed": String(row === focused) },
      );
    }),
  );
}

/** The verdict on the child of `node` that carries `token`, or null when it was not drafted there. @param {Step} step @param {number} node @param {number} token */
export function verdict(step, node, token) {
  const up = step.nodes[node];
  const match = up && up.children.map((id) => step.nodes[id]).find((child) => child.token === token);
  return match ? match.status : null;
}

/** Every token's text up to the root of `step`: prompt, then output. @param {Stage} stage @param {Step} step */
export function contextOf(stage, step) {
  const { run } = stage.trace;
  const pieces = run ? [...run.prompt_pieces] : [];
  for (const before of stage.trace.steps) {
    if (before === step) break;
    pieces.push(...before.pieces);
  }
  return pieces.slice(0, step.position + 1);
}
