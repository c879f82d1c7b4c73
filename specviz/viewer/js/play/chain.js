// @ts-check
// A chain of drafted tokens: one column a place, as high as the chance that this pass emits a token there. All columns sum to τ.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as bill from "./bill.js";
import * as chance from "./chance.js";
import { Drawing, key, mark, place, readout, set, slider, task, thousand, two } from "./dials.js";
import { page, presets, small } from "./world.js";

const MOST = 8;

/** @param {import("./world.js").World} world @returns {import("./world.js").Level} */
export function chain(world) {
  let [long, drift] = [4, 0.1];
  /** How many throws emitted 1, 2 … tokens. @type {number[]} */
  let lengths = [];
  let running = 0;
  const board = small(world);
  const drawing = new Drawing("svp-chain", "The chance of a token at each place of the chain", () => paint());
  const columns = Array.from({ length: MOST + 1 }, () => ({
    kept: mark("rect", "svp-shared"), lost: mark("rect", "svp-rest"), bonus: mark("rect", "svp-bonus"), high: mark("text", "svp-number"), accept: mark("text", "svp-direct"),
    name: mark("text", "svp-token"), pile: mark("rect", "svp-pile-kept"), goal: mark("path", "svp-goal"), share: mark("text", "svp-number"),
  }));
  const [floor, ...titles] = [mark("path", "svp-floor"), mark("text", "svp-caption"), mark("text", "svp-caption")];
  drawing.svg.append(floor, ...columns.flatMap((column) => Object.values(column)), ...titles);
  const said = dom.h("p", { class: "svp-said", role: "status" });
  const emitted = readout("tokens per pass, τ");

  /** Acceptance at each place: the further from known text, the more the drafter's guess is blurred. */
  const accepts = () =>
    Array.from({ length: long }, (_, at) => {
      const sharp = (1 - drift) ** at;
      return chance.sum(chance.shared(world.p, world.q.map((one) => sharp * one + (1 - sharp) / world.q.length)));
    });

  const parts = () => {
    const { height } = drawing;
    const [top, base, foot] = [34, Math.round(height * 0.56), height - 46];
    return { top, base, foot, unit: base - top - 14, low: foot - base - 76 };
  };

  const x = (at) => ((at + 0.5) * drawing.width) / (long + 1);

  function draw() {
    const accept = accepts();
    const reach = [1, ...bill.survival(accept)];
    const chances = bill.lengths(accept);
    emitted.say(two(bill.tau(accept)), `${reach.slice(0, long + 1).map((one, at) => (at && long > 4 ? one.toFixed(1) : two(one))).join(" + ")}`);
    quest.check(bill.tau(accept) >= 3 && long <= 5);
    drawing.show({ reach, chances, accept });
  }

  function paint() {
    const { reach, chances, accept } = drawing.now;
    const { base, foot, unit, low } = parts();
    const thrown = chance.sum(lengths);
    const most = Math.max(...chances, 0.25);
    const wide = Math.min(drawing.width / (long + 1) - 8, 116);
    set(floor, { d: `M0 ${base + 0.5}H${drawing.width}M0 ${foot + 0.5}H${drawing.width}` });
    place(titles[0], 0, 14, "The chance that this pass emits a token at this place");
    place(titles[1], 0, base + 58, thrown ? `How many tokens a pass emitted, of ${thrown} passes` : "How many tokens a pass emits");
    columns.forEach((column, at) => {
      for (const part of Object.values(column)) part.toggleAttribute("hidden", at > long);
      if (at > long) return;
      const [left, last] = [x(at) - wide / 2, at === long];
      const [high, keep] = [reach[at] * unit, (last ? 0 : reach[at + 1]) * unit];
      set(column.kept, { x: left, y: base - keep, width: wide, height: keep });
      set(column.lost, { x: left, y: base - high, width: wide, height: last ? 0 : high - keep });
      set(column.bonus, { x: left, y: base - high, width: wide, height: last ? high : 0 });
      place(column.high, x(at), base - high - 6, two(reach[at]));
      place(column.accept, x(at), base - keep / 2 + 5, last ? "" : keep > 24 && wide > 50 ? `× ${two(accept[at])}` : "");
      place(column.name, x(at), base + 18, last ? "bonus" : String(at + 1));
      const share = thrown ? lengths[at] / thrown : 0;
      set(column.pile, { x: left, y: foot - (share / most) * low, width: wide, height: (share / most) * low });
      set(column.goal, { d: `M${left - 3} ${(foot - (chances[at] / most) * low).toFixed(1)}h${wide + 6}` });
      place(column.share, x(at), foot + 16, `${at + 1}: ${two(thrown ? share : chances[at])}`);
    });
  }

  /** One pass: tokens are judged until one is rejected; it emits the accepted ones and one more. */
  function pass() {
    const accept = accepts();
    const failed = accept.findIndex((one) => Math.random() >= one);
    return failed < 0 ? long : failed;
  }

  async function runOne() {
    const mine = ++running;
    const kept = pass();
    const { base, foot, unit } = parts();
    const reach = [1, ...bill.survival(accepts())];
    if (!dom.calm()) {
      const coin = mark("g", "svp-coin", dom.s("circle", { r: 8 }));
      drawing.svg.append(coin);
      const stops = Array.from({ length: kept + 1 }, (_, at) => [x(at), base - (at < kept ? reach[at + 1] : reach[at]) * unit - (at < kept ? -12 : 12)]);
      stops.unshift([x(0), -10]);
      stops.push([x(kept), foot - 8]);
      const frames = stops.map(([left, top]) => ({ transform: `translate(${left}px, ${top}px)` }));
      coin.classList.add(kept === long ? "svp-is-bonus" : "svp-is-kept");
      await coin.animate(frames, { duration: 320 * frames.length, easing: "ease-in-out" }).finished;
      coin.remove();
    }
    if (mine !== running) return;
    lengths[kept] += 1;
    const more = kept === long ? "all accepted, and the target adds one for free" : `guess ${kept + 1} was rejected and replaced`;
    dom.say(said, `${format.count(kept + 1, "token")} from this pass: ${more}.`);
    draw();
  }

  function runMany() {
    const mine = ++running;
    const end = () => {
      const mean = lengths.reduce((sum, many, at) => sum + many * (at + 1), 0) / chance.sum(lengths);
      dom.say(said, `${two(mean)} tokens per pass on average; the columns above sum to ${two(bill.tau(accepts()))}.`);
    };
    thousand({ on: () => mine === running && drawing.host.isConnected, one: () => (lengths[pass()] += 1), frame: draw, end });
  }

  function reset() {
    running += 1;
    lengths = Array(long + 1).fill(0);
    dom.say(said, "");
  }
  const again = (change) => {
    change();
    reset();
    draw();
  };
  const quest = task("Reach 3 tokens per pass with five guesses, by q alone.", () => {
    [long, drift] = [5, 0.1];
    dials[0].set(long);
    dials[1].set(drift);
    world.set({ p: [0.42, 0.22, 0.14, 0.12, 0.06, 0.04], q: [0.2, 0.12, 0.12, 0.16, 0.22, 0.18] }, { p: true, q: false });
  }, "Done. Each place multiplies: a little more acceptance at the first one lifts every column behind it.");
  const dials = [
    slider("Guesses in the chain, γ", { min: 1, max: MOST, value: long }, (value) => again(() => (long = value))),
    slider("Blur: q flattens at each place", { min: 0, max: 0.4, step: 0.02, value: drift, show: (value) => `${Math.round(100 * value)} %` }, (value) => again(() => {
      drift = quest.on() ? drift : value;
      dials[1].set(drift);
    })),
  ];
  return {
    element: page({
      question: "Each guess needs all before it. How far does a chain get?",
      text: "At each place, what p and q share goes on. The rest ends there, with a token from what is left of p. Past the last, the target adds a bonus.",
      figure: [
        key(["svp-shared", "accepted, goes on"], ["svp-rest", "rejected, replaced: the pass ends"], ["svp-bonus", "bonus"]),
        drawing.host,
        dom.h("div", { class: "svp-buttons" }, dom.button("Run a pass", "", runOne, { class: "svp-primary" }), dom.button("Run a thousand", "", runMany), said),
      ],
      tools: [presets(world).element, board.host, ...dials.map((each) => each.element), emitted.element, quest.element],
    }),
    quest,
    reset,
    show: () => (board.show(world), draw()),
    fit: () => board.now && board.fit(),
  };
}
