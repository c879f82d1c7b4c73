// @ts-check
// Siblings of one node, judged one after the other: each by what its elders left of p. And by p every time, which is not exact.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as chance from "./chance.js";
import { Drawing, chips, key, mark, place, readout, set, slider, task, two } from "./dials.js";
import { page, presets, small } from "./world.js";

const MOST = 4;
const ORDINALS = ["1st", "2nd", "3rd", "4th"];

/** @param {import("./world.js").World} world @returns {import("./world.js").Level} */
export function tree(world) {
  let [many, naive] = [3, false];
  /** @type {ReturnType<typeof chance.thrown> | null} */
  let story = null;
  const names = world.names.map((name) => name.trim());
  const board = small(world);
  const drawing = new Drawing("svp-tree", "What each sibling is judged by, and the chance that one is accepted", ({ each, emitted }) => {
    drawRounds();
    drawGains(each, emitted);
  });
  const rounds = Array.from({ length: MOST }, () => ({
    title: mark("text", "svp-caption"), said: mark("text", "svp-number svp-verdict"), floor: mark("path", "svp-floor"),
    bars: names.map((name) => ({ both: mark("rect", "svp-shared"), rest: mark("rect", "svp-rest"), over: mark("rect", "svp-over"), p: mark("path", "svp-line svp-line-p"), q: mark("path", "svp-line svp-line-q"), name: mark("text", "svp-token", name), coin: mark("circle", "svp-coin") })),
  }));
  const gains = Array.from({ length: MOST }, () => ({ bar: mark("rect", "svp-shared"), more: mark("rect", "svp-more"), likely: mark("path", "svp-line svp-line-q"), value: mark("text", "svp-number"), name: mark("text", "svp-number") }));
  const outs = names.map(() => ({ bar: mark("rect", "svp-pile-kept"), goal: mark("path", "svp-goal"), value: mark("text", "svp-number") }));
  const titles = [mark("text", "svp-caption"), mark("text", "svp-caption")];
  const floor = mark("path", "svp-floor");
  drawing.svg.append(
    floor, ...titles,
    ...rounds.flatMap(({ bars, ...rest }) => [...Object.values(rest), ...bars.flatMap((bar) => Object.values(bar))]),
    ...gains.flatMap((gain) => Object.values(gain)), ...outs.flatMap((out) => Object.values(out)),
  );
  const said = dom.h("p", { class: "svp-said", role: "status" });
  const accepted = readout("of the passes accept one");
  const apart = readout("distance of the output from p");

  /** What each round is judged by: as it was thrown, and from there on as if the likeliest guess failed each time. */
  function trials() {
    const found = (story ? story.trials : []).map((trial) => ({ ...trial, height: trial.coin * trial.share }));
    while (found.length < many) {
      const last = found[found.length - 1];
      const next = last ? chance.rejected(last.r, last.q, last.token) : { r: world.p, q: world.q };
      if (chance.sum(next.q) <= 0) break;
      found.push({ r: naive ? world.p : next.r, q: next.q, token: next.q.indexOf(Math.max(...next.q)), height: -1, share: 0, coin: 0, kept: false, limit: 0 });
    }
    return found;
  }

  function draw() {
    const each = Array.from({ length: MOST }, (_, at) => chance.siblings(world.p, world.q, at + 1, naive));
    const found = each[many - 1];
    const total = chance.sum(found.accepted);
    accepted.say(two(total), many > 1 ? `the first alone: ${two(each[0].accepted[0])}` : "Σ min(p, q)");
    const off = chance.distance(found.emitted, world.p);
    apart.say(off < 1e-9 ? "0" : off.toFixed(3), off < 1e-9 ? "exactly: all orders enumerated" : "all orders enumerated: not exact");
    quest.check(!naive && each[0].accepted[0] < 0.6 && chance.sum(each[1].accepted) >= 0.95);
    drawing.show({ each, emitted: found.emitted });
  }

  function drawRounds() {
    const { width, height } = drawing;
    const narrow = width < 560;
    const list = trials();
    const across = narrow ? 2 : Math.max(2, many);
    const pitch = width / across;
    const tall = narrow ? height * 0.31 : height * 0.56;
    const wide = Math.min(pitch - 22, 300);
    rounds.forEach((round, at) => {
      const trial = list[at];
      const hidden = !trial || at >= many;
      const spared = Boolean(story) && !hidden && trial.height < 0;
      for (const part of [round.title, round.said, round.floor, ...round.bars.flatMap((bar) => Object.values(bar))]) {
        part.toggleAttribute("hidden", hidden);
        part.classList.toggle("svp-faint", spared && part !== round.title);
      }
      if (hidden) return;
      const [left, top] = [(at % across) * pitch, Math.floor(at / across) * tall];
      const base = top + tall - 58;
      const most = Math.max(...trial.r, ...trial.q, 0.3) * 1.05;
      const y = (value) => base - (value / most) * (base - top - 30);
      const slot = wide / names.length;
      place(round.title, left, top + 14, `${ORDINALS[at]} sibling${at ? (naive ? ": by p again" : narrow ? "" : ": by what is left") : ": by p"}`);
      set(round.floor, { d: `M${left} ${base + 0.5}h${wide}` });
      const token = world.names[trial.token];
      const before = at ? format.quote(world.names[list[at - 1].token]) : "";
      const verdict = spared ? "not needed" : trial.height < 0 ? (at ? `if ${before} is rejected` : "not drawn yet") : `${format.quote(token)} ${trial.kept ? "accepted" : "rejected"}, r/q ${two(trial.limit)}`;
      place(round.said, left + wide / 2, base + 42, verdict);
      round.said.setAttribute("data-kept", trial.height < 0 ? "" : String(trial.kept));
      trial.r.forEach((r, place_) => {
        const { both, rest, over, p, q: line, name, coin } = round.bars[place_];
        const q = trial.q[place_];
        const [x, room] = [left + slot * place_ + slot * 0.12, slot * 0.76];
        const spans = [[both, 0, Math.min(r, q)], [rest, Math.min(r, q), r], [over, Math.min(r, q), q]];
        for (const [rect, low, high] of /** @type {[SVGElement, number, number][]} */ (spans)) set(rect, { x, y: y(high), width: room, height: y(low) - y(high) < 0.5 ? 0 : y(low) - y(high) });
        set(p, { d: `M${x.toFixed(1)} ${y(r).toFixed(1)}h${room.toFixed(1)}` });
        set(line, { d: `M${x.toFixed(1)} ${y(q).toFixed(1)}h${room.toFixed(1)}` });
        place(name, x + room / 2, base + 17, names[place_].slice(0, Math.floor(slot / 7.6)));
        set(coin, { cx: x + room / 2, cy: y(Math.max(0, trial.height)), r: trial.height >= 0 && trial.token === place_ ? 7 : 0, class: `svp-coin ${trial.kept ? "svp-is-kept" : "svp-is-over"}` });
      });
    });
  }

  function drawGains(each, emitted) {
    const { width, height } = drawing;
    const narrow = width < 560;
    const [top, foot] = [height * (narrow ? 0.66 : 0.62), height - 24];
    const half = width * 0.46;
    place(titles[0], 0, top + 12, narrow ? "Accepted, by siblings" : "Chance that one is accepted, by number of siblings");
    place(titles[1], width - half, top + 12, narrow ? "What comes out; line: p" : "What comes out; the line is p");
    set(floor, { d: `M0 ${foot + 0.5}h${half}M${width - half} ${foot + 0.5}h${half}` });
    const unit = foot - top - 40;
    gains.forEach(({ bar, more, likely, value, name }, at) => {
      const [slot, total] = [half / MOST, chance.sum(each[at].accepted)];
      const [x, room] = [slot * at + slot * 0.14, slot * 0.72];
      const before = at ? chance.sum(each[at - 1].accepted) : 0;
      set(bar, { x, y: foot - before * unit, width: room, height: before * unit });
      set(more, { x, y: foot - total * unit, width: room, height: Math.max(0, total - before) * unit });
      set(likely, { d: `M${(x - 3).toFixed(1)} ${(foot - chance.likeliest(world.p, world.q, at + 1) * unit).toFixed(1)}h${(room + 6).toFixed(1)}` });
      place(value, x + room / 2, foot - total * unit - 6, two(total));
      place(name, x + room / 2, foot + 16, String(at + 1));
      for (const part of [bar, more, likely]) part.classList.toggle("svp-faint", at >= many);
    });
    const most = Math.max(...emitted, ...world.p);
    outs.forEach(({ bar, goal, value }, at) => {
      const slot = half / outs.length;
      const [x, room] = [width - half + slot * at + slot * 0.14, slot * 0.72];
      const high = (emitted[at] / most) * unit;
      set(bar, { x, y: foot - high, width: room, height: high });
      set(goal, { d: `M${(x - 3).toFixed(1)} ${(foot - (world.p[at] / most) * unit).toFixed(1)}h${(room + 6).toFixed(1)}` });
      place(value, x + room / 2, foot + 16, two(emitted[at]).slice(Number(narrow)));
    });
  }

  function toss() {
    story = chance.thrown(world.p, world.q, { many, naive });
    const { trials: list, token } = story;
    const kept = list[list.length - 1].kept;
    const tried = format.count(list.length, "sibling");
    dom.say(said, kept ? `${format.quote(world.names[token])} accepted after ${tried}.` : `All ${tried} rejected: ${format.quote(world.names[token])} is drawn from what is left.`);
    draw();
  }

  function reset() {
    story = null;
    dom.say(said, "");
  }
  const again = (change) => {
    change();
    reset();
    draw();
  };
  const rules = chips("Rule", [["left", "by what is left"], ["p", "by p every time"]], (value) => again(() => {
    naive = value === "p";
    rules.press(value);
  }));
  rules.press("left");
  const start = () => world.set({ p: [0.3, 0.3, 0.2, 0.1, 0.05, 0.05], q: [0.35, 0.1, 0.1, 0.1, 0.2, 0.15] });
  const quest = task("Let one guess be accepted less than 0.60 of the time, but two at least 0.95.", start, "Done. Trees are for a drafter that is sure, and whose second guess is the target's other choice.");
  const dial = slider("Siblings drafted, k", { min: 1, max: MOST, value: many }, (value) => again(() => (many = value)));
  return {
    element: page({
      question: "The first guess failed. What is the second judged by?",
      text: "What q covers has had its turn, so the next guess meets what is left of p. Judge by p every time instead, and see what comes out.",
      figure: [
        key(["svp-shared", "accepted"], ["svp-over", "rejected"], ["svp-rest", "left for the next"], ["svp-key-line", "the drafter's likeliest tokens, as certain guesses"]),
        drawing.host,
        dom.h("div", { class: "svp-buttons" }, dom.button("Draw the siblings", "", toss, { class: "svp-primary" }), said),
      ],
      tools: [presets(world).element, board.host, dial.element, rules.element, accepted.element, apart.element, quest.element],
    }),
    quest,
    reset,
    show: () => (board.show(world), draw()),
    fit: () => board.now && board.fit(),
  };
}
