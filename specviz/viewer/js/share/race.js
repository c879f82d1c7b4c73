// @ts-check
// The race of the stages in sight as a film: a name, a clock, a bar and the last words or the picture of every lane.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import { palette } from "../run/lanes.js";
import { comfortable } from "../run/race.js";
import { Lane, seconds } from "../run/raceLane.js";
import { countAt, lineUp, places, result } from "../run/raceLanes.js";

/** What films use of a pen of a canvas. @typedef {Pick<CanvasRenderingContext2D, "fillRect" | "fillText" | "measureText" | "drawImage" | "save" | "restore" | "translate" | "font" | "fillStyle" | "textAlign" | "textBaseline" | "globalAlpha" | "imageSmoothingEnabled">} Pen */
/** A canvas, how long its film takes, and what draws the moment at a share of it, by default on the canvas, once it is ready; `live` are the names of its live runs. @typedef {{ canvas: HTMLCanvasElement, seconds: number, draw: (share: number, pen?: Pen) => void, ready?: () => Promise<any>, live?: string[] }} Film */

const [WIDE, TALL, PAD, SIDE] = [960, 104, 24, 192];
const LETTERS = Math.floor((WIDE - 2 * PAD) / 8.45);

/** Null for stages without a race. @param {Stage[]} stages @returns {Film | null} */
export function race(stages) {
  const lanes = lineUp(stages.filter(({ running }) => !running).map(({ trace }) => trace));
  if (lanes.length < 2) return null;
  const [order, most] = [places(lanes), Math.max(...lanes.map(({ count }) => count), 1)];
  const total = Math.max(...lanes.map((lane) => lane.total));
  const canvas = document.createElement("canvas");
  const paint = palette(stages[0].root);
  const painters = lanes.map((lane) => lane.grid && new Lane(lane, null, paint.plain));
  const [tall, left] = painters.some(Boolean) ? [SIDE + PAD, SIDE + 2 * PAD] : [TALL, PAD];
  Object.assign(canvas, { width: WIDE, height: 2 * Math.ceil((64 + tall * lanes.length) / 2) });
  const own = dom.pen(canvas);
  const prompts = new Set(stages.map(({ trace }) => (trace.run ? trace.run.prompt.replace(/\s+/g, " ") : "")));

  /** @param {number} share @param {Pen} pen */
  function draw(share, pen = own) {
    const write = (/** @type {string} */ words, /** @type {number} */ x, /** @type {number} */ y, colour = paint.ink, font = `15px ${dom.SANS}`, align = "left") => {
      Object.assign(pen, { font, fillStyle: colour, textAlign: align });
      pen.fillText(words, x, y);
    };
    const clock = share * total;
    pen.fillStyle = paint.card;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    write(format.short([...prompts].map((prompt) => `“${prompt}”`).join(" · "), 112), PAD, 36, paint.mute);
    lanes.forEach((lane, at) => {
      const [y, count, over] = [64 + at * tall, countAt(lane, clock), clock >= Math.max(lane.total, lane.rival.total)];
      const baseline = lane.kind === "baseline";
      write(lane.name, left, y + 14, paint.ink, `600 17px ${dom.SANS}`);
      if (over) write(result(lane, order[at]), left + 22 + pen.measureText(lane.name).width, y + 14, baseline ? paint.mute : paint.bonus, `600 15px ${dom.SANS}`);
      write(`${count} of ${lane.count}    ${seconds(Math.min(clock, lane.total))}`, WIDE - PAD, y + 14, paint.ink, `15px ${dom.SANS}`, "right");
      pen.fillStyle = paint.skip;
      pen.fillRect(left, y + 26, WIDE - left - PAD, 1);
      pen.fillStyle = baseline ? paint.plain : paint.accepted;
      pen.fillRect(left, y + 23, ((WIDE - left - PAD) * count) / most, 6);
      const painter = painters[at];
      if (painter) {
        const { body, element } = painter;
        painter.write(count);
        const size = SIDE / Math.max(body.width, body.height);
        pen.imageSmoothingEnabled = size < 1;
        pen.drawImage(body, PAD, y, body.width * size, body.height * size);
        write(element.querySelector("em")?.textContent || "", left, y + 52, paint.mute);
        return;
      }
      const words = lane.tokens.slice(0, Math.min(count, lane.known)).map(({ text }) => format.plain(text)).join("").replace(/\s*\n\s*/g, "⏎ ");
      const first = Math.max(0, Math.ceil(words.length / LETTERS) - 2);
      for (const line of [0, 1]) write(words.slice((first + line) * LETTERS, (first + line + 1) * LETTERS), PAD, y + 52 + 20 * line, paint.ink, "14px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace");
    });
  }
  const ready = () => Promise.all(painters.map((one) => one?.picture?.decode()));
  return { canvas, seconds: total / 1e9 / comfortable(total), draw, ready };
}

/** The last moment of a film as an SVG. @param {Film} film @returns {SVGSVGElement} */
export function lastMoment({ canvas: { width, height }, draw }) {
  const [svg, ruler] = [dom.s("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` }), dom.pen(document.createElement("canvas"))];
  /** @type {[number, number][]} */
  const places = [[0, 0]];
  /** @param {string} tag @param {Record<string, any>} marks @param {string} [words] */
  const add = (tag, { x, y, ...marks }, words) => {
    const [left, top] = places[places.length - 1];
    svg.append(dom.s(tag, { x: left + x, y: top + y, fill: pen.fillStyle, opacity: pen.globalAlpha < 1 && pen.globalAlpha, ...marks }, words));
  };
  const pen = /** @type {any} */ ({
    ...{ font: "", fillStyle: "", textAlign: "left", textBaseline: "alphabetic", globalAlpha: 1, imageSmoothingEnabled: true },
    save: () => places.push([...places[places.length - 1]]),
    restore: () => places.pop(),
    translate: (x, y) => places.push((([left, top]) => [left + x, top + y])(places.pop() || [0, 0])),
    measureText: (words) => (Object.assign(ruler, { font: pen.font }), ruler.measureText(words)),
    fillRect: (x, y, wide, tall) => wide > 0 && tall > 0 && add("rect", { x, y, width: wide, height: tall }),
    fillText: (words, x, y) => {
      const [anchor, baseline] = [pen.textAlign === "right" && "end", pen.textBaseline === "middle" && "central"];
      add("text", { x, y, "text-anchor": anchor, "dominant-baseline": baseline, style: `font: ${pen.font}; white-space: pre` }, words);
    },
    drawImage: (source, x, y, width, height) =>
      add("image", { x, y, width, height, href: source.toDataURL(), style: pen.imageSmoothingEnabled ? null : "image-rendering: pixelated" }),
  });
  draw(1, pen);
  return /** @type {any} */ (svg);
}
