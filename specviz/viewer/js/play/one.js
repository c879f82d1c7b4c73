// @ts-check
// One drafted token: the exact rule, and the relaxed one that pools look-alikes. Coins fall under q and pile up.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import { Board, emptyTally } from "./board.js";
import * as chance from "./chance.js";
import { key, readout, slider, task, thousand, two } from "./dials.js";
import { SHADES, page, presets } from "./world.js";

const TONES = [0, 0.18, 0.4, 0.56, 0.82, 1];

/** Two bars of equal length: q is what is accepted and what is rejected, p the accepted and what is left. */
function balance() {
  const row = (name, rest) => {
    const [one, other] = [dom.h("i", { class: "svp-shared" }), dom.h("i", { class: rest })];
    return { one, other, element: dom.h("p", {}, dom.h("b", {}, name), dom.h("span", {}, one, other)) };
  };
  const rows = [row("q", "svp-over"), row("p", "svp-rest")];
  const element = dom.h("div", { class: "svp-balance" }, rows.map((each) => each.element));
  const show = (accepted) => {
    for (const { one, other } of rows) {
      one.style.width = `${100 * accepted}%`;
      other.style.width = `${100 * (1 - accepted)}%`;
      dom.say(one, accepted > 0.12 ? two(accepted) : "");
      dom.say(other, accepted < 0.88 ? two(1 - accepted) : "");
    }
  };
  return { element, show };
}

/** @param {import("./world.js").World} world @param {boolean} pools whether look-alikes are pooled */
function level(world, pools) {
  const names = pools ? TONES.map((_, at) => `shade ${at + 1} of ${TONES.length}`) : world.names;
  const board = new Board({
    names: pools ? names : names.map((name) => format.token(name)),
    spoken: "Probabilities of target and drafter. Arrows up and down move a bar, left and right choose one.",
    tones: pools ? TONES : null,
    drag: (side, at, value) => world.drag(side, at, value),
  });
  const said = dom.h("p", { class: "svp-said", role: "status" });
  const accepted = readout("of the guesses are accepted");
  const apart = readout(pools ? "distortion of what comes out" : "distance of the pile from p");
  const even = balance();
  let tally = emptyTally(names.length);
  let running = 0;
  let [factor, many] = [2, 2];
  const near = () => chance.nearest(TONES, many);
  const relaxed = () => chance.relaxed(world.p, world.q, near(), factor);
  const goal = () => (pools ? relaxed().emitted : world.p);

  function reset() {
    running += 1;
    tally = emptyTally(names.length);
    board.clear();
    dom.say(said, "");
  }

  function show() {
    const { p, q, fixed } = world;
    const found = pools ? relaxed() : null;
    const strict = chance.sum(chance.shared(p, q));
    const total = found ? chance.sum(found.accepted) : strict;
    board.show({ p, q, fixed, pooled: found && found.pooled, tally });
    even.show(strict);
    accepted.say(two(total), pools ? `${two(strict)} exactly, ${two(total - strict)} beyond p` : "Σ min(p, q): the area that both share");
    if (found) {
      const moved = chance.distance(found.emitted, p);
      apart.say(two(moved), `never more than 1 − 1/λ = ${two(1 - 1 / factor)}`);
      quest.check(total >= 0.895 && moved <= 0.055);
    } else {
      const luck = chance.sum(p.map((one) => Math.sqrt((2 * one * (1 - one)) / (Math.PI * Math.max(1, tally.count))))) / 2;
      const off = chance.distance(tally.kept.map((one, at) => (one + tally.fresh[at]) / Math.max(1, tally.count)), p);
      apart.say(tally.count ? off.toFixed(3) : "–", tally.count ? `after ${format.count(tally.count, "coin")}; luck leaves about ${luck.toFixed(3)}` : "drop some coins");
      quest.check(total > 0.9);
    }
  }

  /** @param {ReturnType<typeof chance.thrown>} one */
  function count({ trials: [{ kept }], token }) {
    (kept ? tally.kept : tally.fresh)[token] += 1;
    tally.count += 1;
  }

  const toss = () => chance.thrown(world.p, world.q, { pooled: pools ? relaxed().pooled : null });

  /** @param {ReturnType<typeof chance.thrown>} one */
  function words({ trials: [{ token: drafted, share, limit, coin, kept }], token }) {
    const name = (at) => (pools ? names[at] : format.quote(names[at]));
    const line = `${two(limit * share)}${limit < 1 ? "" : ", all of q"}`;
    return `${name(drafted)} was drafted; its coin fell at ${two(coin * share)}. Accepted below ${line}: ${kept ? "it stays." : `it goes, and ${name(token)} comes from what is left of p.`}`;
  }

  async function dropOne() {
    const mine = ++running;
    const one = toss();
    dom.say(said, words(one));
    await board.drop(one);
    if (mine !== running) return;
    count(one);
    show();
  }

  function dropMany() {
    const mine = ++running;
    const one = () => {
      const tossed = toss();
      const [{ token: drafted, share, coin, kept }] = tossed.trials;
      const height = kept ? coin * share : board.left(tossed.token);
      board.dot(kept ? (coin * share < world.p[drafted] ? "kept" : "extra") : "fresh", board.spot(tossed.token, height));
      count(tossed);
    };
    const end = () => dom.say(said, `${tally.count} coins: the pile is ${chance.distance(tally.kept.map((each, at) => (each + tally.fresh[at]) / tally.count), goal()).toFixed(3)} from ${pools ? "what this rule emits, which is not p" : "p"}.`);
    thousand({ on: () => mine === running && board.host.isConnected, one, frame: show, end });
  }

  const quest = pools
    ? task("Accept 0.90 with a distortion of 0.05 at most. p stays as it is; q, λ and k may move.", () => world.set({ p: SHADES[0][2], q: SHADES[0][3] }, { p: true, q: false }), "Done. What is accepted beyond p is distortion, one for one. Only a better q is free.")
    : task("Bring the acceptance above 0.90. p stays as it is, and q's second bar is pinned.", () => world.set({ p: [0.34, 0.28, 0.16, 0.12, 0.06, 0.04], q: [0.12, 0.36, 0.1, 0.1, 0.2, 0.12] }, { p: true, q: [false, true] }), "Done. What q has too much in its pinned bar, 0.08, is lost whatever the others do: 0.92 is the most.");
  const again = (change) => {
    change();
    reset();
    show();
  };
  const dials = pools
    ? [
        slider("λ, the most a code may gain", { min: 1, max: 10, step: 0.5, value: factor, show: (value) => `${value} times` }, (value) => again(() => (factor = value))),
        slider("k, look-alikes considered", { min: 0, max: 5, value: many }, (value) => again(() => (many = value))),
      ]
    : [];
  const buttons = dom.h("div", { class: "svp-buttons" }, dom.button("Drop a coin", "", dropOne, { class: "svp-primary" }), dom.button("Drop a thousand", "", dropMany), dom.button("Clear", "", () => again(() => {})), said);
  const keys = pools
    ? key(["svp-shared", "accepted by the exact rule"], ["svp-extra", "accepted because look-alikes count too"], ["svp-over", "rejected"], ["svp-rest", "rest of p"])
    : key(["svp-shared", "accepted: min(p, q)"], ["svp-over", "rejected: q above p"], ["svp-rest", "left: p above q, which replaces it"]);
  return {
    element: page({
      question: pools ? "Six shades that look alike: what if any of them would do?" : "Guesses drawn from q: how can the text still follow p?",
      text: pools
        ? "A picture's code may count its look-alikes' probability as its own, up to λ times what it had. More guesses pass. Who pays?"
        : "A coin falls somewhere under q. If that is under p too, the guess stays: accepted with min(1, p / q). If not, a token is drawn from where p stands higher than q.",
      figure: [keys, board.host, buttons],
      tools: [presets(world).element, ...dials.map((each) => each.element), pools ? null : even.element, accepted.element, apart.element, quest.element],
    }),
    quest,
    show,
    reset,
    fit: () => board.now && board.fit(),
  };
}

/** @param {import("./world.js").World} world */
export const oneToken = (world) => level(world, false);
/** @param {import("./world.js").World} world */
export const lookAlikes = (world) => level(world, true);
