// @ts-check
// Drawings of the cost laboratory: speed-up by draft length, acceptance by depth, a step on one clock, and a pass by its rows.
import * as dom from "../kit/dom.js";
import { passCost } from "./bill.js";
import { Drawing, clamp, draggable, handle, mark, place, set, two } from "./dials.js";

/** @typedef {{ all: number[], best: number, at: number, seen: Set<number> | null, runs: import("./laboratory.js").Run[], dots: { depth: number, speedup: number }[] }} Gains */

const path = (points) => `M${points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`;
const text = (x, y, words, kind = "svp-number", anchor = "middle") => dom.s("text", { class: kind, x, y, style: `text-anchor:${anchor}` }, words);
const diamond = (x, y) => `M${x - 6} ${y}L${x} ${y - 6}L${x + 6} ${y}L${x} ${y + 6}Z`;
const LEFT = 46;

/** Speed-up by draft length: the curve, its optimum, a cursor to drag, and dots of runs. @param {(depth: number) => void} move */
export function gains(move) {
  const [loss, level, curve, needle] = [mark("rect", "svp-loss"), mark("path", "svp-level-line"), mark("path", "svp-curve"), mark("path", "svp-needle")];
  const [grid, marks, top] = [mark("g", "svp-grid"), mark("g", "svp-marks"), mark("circle", "svp-best")];
  const [label, said] = [mark("text", "svp-best-label"), mark("text", "svp-cursor-label")];
  const zone = mark("rect", "svp-zone svp-across");
  const { ring, knob } = handle("Draft length γ", "p", "12");
  const pitch = () => (drawing.width - LEFT - 26) / Math.max(1, drawing.now.all.length - 1);
  const drawing = new Drawing("svp-gains", "Speed-up by draft length", draw);
  drawing.svg.append(loss, grid, level, curve, marks, needle, top, label, said, zone, knob);
  const go = (depth) => move(clamp(depth, 0, drawing.now.all.length - 1));
  draggable(zone, knob, {
    to: (event) => go(Math.round((event.clientX - drawing.svg.getBoundingClientRect().left - LEFT) / pitch())),
    move: (steps) => go(drawing.now.at + (Math.abs(steps) === 10 ? Math.sign(steps) * 3 : steps)),
  });
  set(knob, { tabindex: "0" });

  /** @param {Gains} now */
  function draw({ all, best, at, seen, runs, dots }) {
    const { width, height } = drawing;
    const shown = seen ? [...seen] : all.map((_, depth) => depth);
    const most = Math.max(1.6, ...all, ...(seen ? [] : [...runs.map(({ measured }) => measured), ...dots.map(({ speedup }) => speedup)])) * 1.14;
    const x = (depth) => LEFT + Math.min(depth, all.length - 1) * pitch();
    const y = (speed) => height - 38 - (speed / most) * (height - 50);
    const step = most > 5 ? 2 : most > 2.4 ? 1 : 0.5;
    const ticks = Array.from({ length: Math.floor(most / step) }, (_, tick) => (tick + 1) * step);
    grid.replaceChildren(
      ...ticks.flatMap((tick) => [dom.s("path", { d: `M${LEFT} ${y(tick)}H${width}` }), text(LEFT - 8, y(tick) + 4, `${tick}×`, "svp-number", "end")]),
      ...all.map((_, depth) => text(x(depth), height - 22, String(depth))),
      text(width - 4, height - 5, "γ, tokens guessed before the target checks", "svp-number", "end"),
    );
    set(loss, { x: LEFT, y: y(1), width: width - LEFT, height: height - 38 - y(1) });
    set(level, { d: `M${LEFT} ${y(1)}H${width}` });
    set(curve, { d: seen ? "M0 0" : path(all.map((speed, depth) => [x(depth), y(speed)])) });
    const dot = (depth, speed, words) => dom.s("path", { class: "svp-run-dot", d: diamond(x(depth), y(speed)) }, dom.s("title", {}, words));
    marks.replaceChildren(
      ...shown.map((depth) => dom.s("circle", { class: "svp-point", cx: x(depth), cy: y(all[depth]), r: 3.5 })),
      ...(seen ? [] : dots.map(({ depth, speedup }) => dot(depth, speedup, `reported: ${two(speedup)}×`))),
      ...(seen ? [] : runs.flatMap(({ depth, measured, predicted, title }) => [
        dom.s("circle", { class: "svp-run-ring", cx: x(depth), cy: y(predicted), r: 8 }),
        dot(depth, measured, `${title}: measured ${two(measured)}×, predicted ${two(predicted)}×`),
        text(clamp(x(depth), LEFT + 40, width - 40), y(measured) + 24, title, "svp-run-label"),
      ])),
    );
    set(needle, { d: `M${x(at)} ${y(all[at])}V${height - 36}` });
    set(ring, { cx: x(at), cy: y(all[at]), r: 9 });
    set(knob, { "aria-valuenow": String(at), "aria-valuemax": String(all.length - 1), "aria-valuetext": `${at}: ${two(all[at])} times as fast` });
    set(zone, { x: LEFT - 20, y: 0, width: width - LEFT + 20, height });
    const peak = !seen && best > 0;
    set(top, { cx: x(best), cy: y(all[best]), r: peak ? 6 : 0 });
    const crowded = runs.some(({ depth, measured }) => Math.abs(x(depth) - x(best)) < 120 && Math.abs(y(measured) - y(all[best]) + 12) < 26);
    place(label, clamp(x(best), LEFT + 60, width - 60), Math.max(14, y(all[best]) - (crowded ? 42 : 16)), peak ? `${two(all[best])}× at γ = ${best}` : "");
    place(said, clamp(x(at), LEFT + 40, width - 40), y(all[at]) + 28, at === best && peak ? "" : `${two(all[at])}×`);
  }
  return drawing;
}

/** Acceptance by depth as bars to drag. @param {(depth: number, value: number) => void} drag */
export function handles(drag) {
  const base = () => drawing.height - 20;
  const columns = Array.from({ length: 12 }, (_, depth) => {
    const column = { bar: mark("rect", "svp-shared"), cap: mark("path", "svp-line svp-line-p"), name: mark("text", "svp-number", String(depth + 1)), zone: mark("rect", "svp-zone"), ...handle(`Acceptance at depth ${depth + 1}`, "p") };
    draggable(column.zone, column.knob, {
      to: (event) => drag(depth, clamp((base() - (event.clientY - drawing.svg.getBoundingClientRect().top)) / (base() - 10), 0, 1)),
      move: (steps) => drag(depth, clamp(Math.round(100 * drawing.now.accept[depth] + steps) / 100, 0, 1)),
      side: (steps) => /** @type {any} */ (columns[(depth + Math.sign(steps) + drawing.now.accept.length) % drawing.now.accept.length].knob).focus(),
    });
    column.knob.addEventListener("focus", () => stop(depth));
    return column;
  });
  const stop = (at) => columns.forEach(({ knob }, depth) => set(knob, { tabindex: depth === at ? "0" : "-1" }));
  const drawing = new Drawing("svp-small", "Acceptance by depth, of the passes that got that far", ({ accept, at }) => {
    const pitch = drawing.width / Math.max(1, accept.length);
    columns.forEach(({ bar, cap, zone, name, knob, ring }, depth) => {
      for (const part of [bar, cap, zone, name, knob]) part.toggleAttribute("hidden", depth >= accept.length);
      if (depth >= accept.length) return;
      const [x, high] = [pitch * depth, base() - accept[depth] * (base() - 10)];
      set(bar, { x: x + pitch * 0.12, y: high, width: pitch * 0.76, height: base() - high });
      bar.classList.toggle("svp-faint", depth >= at);
      set(cap, { d: `M${(x + pitch * 0.12).toFixed(1)} ${high.toFixed(1)}h${(pitch * 0.76).toFixed(1)}` });
      set(zone, { x, y: 0, width: pitch, height: base() });
      set(name, { x: x + pitch / 2, y: base() + 15 });
      set(ring, { cx: x + pitch / 2, cy: high, r: 5 });
      set(knob, { "aria-valuenow": two(accept[depth]), "aria-valuetext": two(accept[depth]) });
    });
  });
  drawing.svg.append(...columns.flatMap(({ bar, cap, name, zone, knob }) => [bar, cap, name, zone, knob]));
  stop(0);
  return drawing;
}

/** One step and as many tokens one by one, on one clock. */
export function clock() {
  const drawing = new Drawing("svp-clock", "A step's time, and that of as many tokens one by one", ({ tau, draft, verify, rest, spent, at }) => {
    const unit = (drawing.width - 2) / Math.max(tau, spent);
    const high = Math.min(30, (drawing.height - 64) / 2);
    const box = (kind, from, long, top) => dom.s("rect", { class: kind, x: from * unit + 0.75, y: top, width: Math.max(0, long * unit - 1.5), height: high, rx: 2 });
    const [first, second] = [20, 20 + high + 28];
    const passes = Array.from({ length: Math.ceil(tau - 1e-9) }, (_, pass) => box("svp-phase-plain", pass, Math.min(1, tau - pass), second));
    const drafts = Array.from({ length: at }, (_, level) => box("svp-phase-draft", (level * draft) / at, draft / at, first));
    drawing.svg.replaceChildren(
      text(0, 13, `this step: ${two(spent)} passes' time`, "svp-caption", "start"), ...drafts, box("svp-phase-verify", draft, verify, first), box("svp-phase-rest", draft + verify, rest, first),
      text(0, second - 7, `its ${two(tau)} tokens one by one`, "svp-caption", "start"), ...passes,
      dom.s("path", { class: tau < spent ? "svp-lost" : "svp-saved", d: `M${Math.min(tau, spent) * unit} ${first + high / 2}H${Math.max(tau, spent) * unit}` }),
    );
  });
  return drawing;
}

/** What a pass costs by its rows, both on logarithmic axes; dashed where nothing was measured. */
export function roofline() {
  const drawing = new Drawing("svp-roof", "Cost of a pass by the rows that it scores", ({ machine: { curve, upto }, batch, rows }) => {
    const { width, height } = drawing;
    const wide = Math.max(512, batch * rows);
    const cost = (many) => passCost(curve, many);
    const tall = Math.max(8, cost(batch * rows) * 1.3);
    const [left, foot] = [30, height - 22];
    const x = (many) => left + (Math.log(many) / Math.log(wide)) * (width - left - 12);
    const y = (much) => foot - 8 - (Math.log(Math.max(1, much)) / Math.log(tall)) * (foot - 32);
    const widths = Array.from({ length: 73 }, (_, at) => wide ** (at / 72));
    const line = (from, to, kind) => {
      const points = widths.filter((many) => many >= from && many <= to && cost(many) <= tall).map((many) => [x(many), y(cost(many))]);
      return points.length > 1 ? dom.s("path", { class: kind, d: path(points) }) : dom.s("path");
    };
    const spot = (many, kind) => [dom.s("path", { class: "svp-needle", d: `M${x(many)} ${y(cost(many))}V${foot}` }), dom.s("circle", { class: kind, cx: x(many), cy: y(cost(many)), r: 6 })];
    const bend = widths.find((many) => cost(many) > 1.3) || wide;
    const zone = (from, to, kind, said) => [
      dom.s("rect", { class: kind, x: x(from), y: 22, width: Math.max(0, x(to) - x(from)), height: foot - 22 }),
      text((x(from) + x(to)) / 2, 37, x(to) - x(from) > 110 ? said : ""),
    ];
    drawing.svg.replaceChildren(
      text(0, 13, "cost of a pass, by its rows", "svp-caption", "start"),
      ...zone(1, bend, "svp-free", "nearly free"), ...zone(bend, wide, "svp-loss", "paid for"),
      ...[1, 2, 4, 8].map((much) => text(left - 8, y(much) + 4, `${much}×`, "svp-number", "end")),
      ...[1, 4, 16, 64, 256].map((many) => text(x(many), height - 6, String(many))),
      dom.s("path", { class: "svp-floor", d: `M${left} ${foot + 0.5}H${width}` }),
      line(1, upto * 1.06, "svp-curve"), line(upto, Infinity, "svp-curve svp-guessed"),
      ...spot(batch, "svp-point"), ...(rows > 1 ? spot(batch * rows, "svp-best") : []),
      text(clamp(x(batch * rows), left + 24, width - 30), y(cost(batch * rows)) - 12, rows > 1 ? `${two(cost(batch * rows) / cost(batch))}×` : "", "svp-best-label"),
    );
  });
  return drawing;
}
