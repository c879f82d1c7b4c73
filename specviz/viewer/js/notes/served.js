// @ts-check
// What a production engine reports of a round: drafted tokens as boxes, unnamed ones dashed, and how many requests shared the pass.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as noteRegistry from "../kit/noteRegistry.js";
import * as svgKit from "../kit/svgKit.js";
import { box, text } from "../kit/svgKit.js";

const SIZE = 26;

/** @param {Trace.ServedNote} note @param {Step} step @param {Stage} stage */
function draw(note, step, stage) {
  const named = step.nodes.length - 1;
  const parts = [];
  for (let place = 0; place < named + note.untold; place += 1) {
    const x = place * (SIZE + 6);
    const kept = place < step.path.length;
    const cell = box(x, 2, SIZE, SIZE, "sv-heat-cell", 4);
    cell.style.fill = "var(--sv-track)";
    cell.style.stroke = kept ? "var(--sv-acc)" : "var(--sv-mute)";
    if (place >= named) cell.style.strokeDasharray = "3 3";
    parts.push(cell);
    parts.push(text(stage, x + SIZE / 2, SIZE / 2 + 6, kept ? "✓" : place < named ? "✗" : "?", { anchor: "middle" }));
  }
  const words =
    `${step.path.length} of ${format.count(named + note.untold, "drafted token", "drafted tokens")} kept.` +
    (note.untold ? ` The engine counts ${note.untold} rejected tokens but does not name them.` : "") +
    ((note.batch || 0) > 1 ? ` ${note.batch} requests shared this pass.` : "") +
    (step.notes.every(({ type }) => String(type).startsWith("served")) ? " The engine reports the chain alone: no block's slots, no best-first frontier." : "");
  const figure = svgKit.frame(Math.max(SIZE, parts.length * (SIZE / 2 + 3)), SIZE + 4, words, parts);
  return dom.h("div", {}, svgKit.caption(words), parts.length ? figure : null);
}

noteRegistry.register("served", { title: "As served", draw });
