// @ts-check
// The race of the stages in sight as a film: a name, a clock, a bar and the last words of every lane.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import { palette } from "../run/lanes.js";
import { comfortable } from "../run/race.js";
import { seconds } from "../run/raceLane.js";
import { countAt, lineUp, places, result } from "../run/raceLanes.js";

/** A canvas, how long its film takes, and what draws the moment at a share of it. @typedef {{ canvas: HTMLCanvasElement, seconds: number, draw: (share: number) => void }} Film */

const [WIDE, TALL, PAD] = [960, 104, 24];
const LETTERS = Math.floor((WIDE - 2 * PAD) / 8.45);

/** Null for stages without a race. @param {Stage[]} stages @returns {Film | null} */
export function race(stages) {
  const lanes = lineUp(stages.filter(({ running }) => !running).map(({ trace }) => trace));
  if (lanes.length < 2) return null;
  const [order, most] = [places(lanes), Math.max(...lanes.map(({ count }) => count), 1)];
  const total = Math.max(...lanes.map((lane) => lane.total));
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: WIDE, height: 2 * Math.ceil((64 + TALL * lanes.length) / 2) });
  const [pen, paint] = [dom.pen(canvas), palette(stages[0].root)];
  const prompt = stages[0].trace.run ? stages[0].trace.run.prompt.replace(/\s+/g, " ") : "";
  const write = (/** @type {string} */ words, /** @type {number} */ x, /** @type {number} */ y, colour = paint.ink, font = `15px ${dom.SANS}`, align = "left") => {
    Object.assign(pen, { font, fillStyle: colour, textAlign: align });
    pen.fillText(words, x, y);
  };

  /** @param {number} share */
  function draw(share) {
    const clock = share * total;
    pen.fillStyle = paint.card;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    write(format.short(`“${prompt}”`, 112), PAD, 36, paint.mute);
    lanes.forEach((lane, at) => {
      const [y, count, over] = [64 + at * TALL, countAt(lane, clock), clock >= Math.max(lane.total, lane.rival.total)];
      const baseline = lane.kind === "baseline";
      write(lane.name, PAD, y + 14, paint.ink, `600 17px ${dom.SANS}`);
      if (over) write(result(lane, order[at]), PAD + 22 + pen.measureText(lane.name).width, y + 14, baseline ? paint.mute : paint.bonus, `600 15px ${dom.SANS}`);
      write(`${count} of ${lane.count}    ${seconds(Math.min(clock, lane.total))}`, WIDE - PAD, y + 14, paint.ink, `15px ${dom.SANS}`, "right");
      pen.fillStyle = paint.skip;
      pen.fillRect(PAD, y + 26, WIDE - 2 * PAD, 1);
      pen.fillStyle = baseline ? paint.plain : paint.accepted;
      pen.fillRect(PAD, y + 23, ((WIDE - 2 * PAD) * count) / most, 6);
      if (lane.grid) return;
      const words = lane.tokens.slice(0, Math.min(count, lane.known)).map(({ text }) => format.plain(text)).join("").replace(/\s*\n\s*/g, "⏎ ");
      const first = Math.max(0, Math.ceil(words.length / LETTERS) - 2);
      for (const line of [0, 1]) write(words.slice((first + line) * LETTERS, (first + line + 1) * LETTERS), PAD, y + 52 + 20 * line, paint.ink, "14px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace");
    });
  }
  return { canvas, seconds: total / 1e9 / comfortable(total), draw };
}
