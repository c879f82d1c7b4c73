// @ts-check
// What the levels share: p and q over six tokens, which of them may move, and the frame of a level's page.
import * as dom from "../kit/dom.js";
import { Board } from "./board.js";
import * as chance from "./chance.js";
import { chips } from "./dials.js";

/** @typedef {{ element: HTMLElement, show(): void, reset(): void, fit?(): void, quest: { drop(): void, on(): boolean } }} Level */

const NAMES = [" blue", " clear", " grey", " dark", " full", " low"];
/** Names and distributions to begin with. @type {[string, string, number[], number[]][]} */
export const WORDS = [
  ["good", "Good", [0.38, 0.24, 0.16, 0.12, 0.06, 0.04], [0.3, 0.3, 0.14, 0.16, 0.04, 0.06]],
  ["bad", "Bad", [0.38, 0.24, 0.16, 0.12, 0.06, 0.04], [0.08, 0.12, 0.14, 0.1, 0.36, 0.2]],
  ["peaked", "Sure", [0.9, 0.04, 0.02, 0.02, 0.01, 0.01], [0.8, 0.1, 0.04, 0.03, 0.02, 0.01]],
  ["flat", "Unsure", [0.2, 0.18, 0.17, 0.16, 0.15, 0.14], [0.14, 0.17, 0.2, 0.14, 0.19, 0.16]],
  ["disjoint", "Disjoint", [0.5, 0.3, 0.2, 0, 0, 0], [0, 0, 0, 0.4, 0.35, 0.25]],
];

/** The same for the shades of a picture, whose distributions are flat. @type {typeof WORDS} */
export const SHADES = [
  ["flat", "Flat", [0.06, 0.2, 0.28, 0.24, 0.16, 0.06], [0.1, 0.12, 0.4, 0.12, 0.22, 0.04]],
  ["off", "Shifted", [0.05, 0.1, 0.3, 0.3, 0.15, 0.1], [0.1, 0.3, 0.3, 0.15, 0.1, 0.05]],
  ["clear", "Clear", [0.03, 0.04, 0.8, 0.06, 0.04, 0.03], [0.05, 0.2, 0.45, 0.2, 0.06, 0.04]],
  ["wide", "Far off", [0.4, 0.3, 0.15, 0.1, 0.05, 0], [0, 0.05, 0.1, 0.15, 0.3, 0.4]],
];

/** @param {(whole?: boolean, begun?: boolean) => void} changed @param {typeof WORDS} from */
export function makeWorld(changed, from) {
  const none = () => ({ p: NAMES.map(() => false), q: NAMES.map(() => false) });
  const pins = (/** @type {boolean | boolean[]} */ which) => NAMES.map((_, at) => (Array.isArray(which) ? Boolean(which[at]) : which));
  return {
    names: NAMES,
    from,
    p: from[0][2],
    q: from[0][3],
    fixed: none(),
    preset: from[0][0],
    /** @type {((preset: string) => void)[]} */
    heard: [],
    /** @param {{ p: number[], q: number[] }} laws @param {{ p: boolean | boolean[], q: boolean | boolean[] }} [fixed] */
    set({ p, q }, fixed = { p: false, q: false }, preset = "") {
      Object.assign(this, { p, q, preset, fixed: { p: pins(fixed.p), q: pins(fixed.q) } });
      changed(true, !preset);
    },
    /** Every bar may move again. */
    free() {
      this.fixed = none();
    },
    drag(side, at, value) {
      if (this.fixed[side][at]) return;
      this[side] = chance.changed(this[side], at, value, this.fixed[side]);
      this.preset = "";
      changed();
    },
  };
}
/** @typedef {ReturnType<typeof makeWorld>} World */

/** Chips of the distributions to begin with. @param {World} world */
export function presets(world) {
  const { from } = world;
  const made = chips("Initial drafter", from.map(([value, words]) => [value, words]), (value) => {
    const [, , p, q] = from.find(([name]) => name === value) || from[0];
    world.set({ p, q }, undefined, value);
  });
  world.heard.push(made.press);
  return made;
}

/** A small board to drag p and q beside another figure. @param {World} world */
export const small = (world) =>
  new Board({
    names: world.names.map((name) => name.trim()),
    spoken: "Probabilities of target and drafter. Arrows up and down move a bar, left and right choose one.",
    small: true,
    drag: (side, at, value) => world.drag(side, at, value),
  });

/** A level's page: its question, its figure, its tools. @param {{ question: string, text: any, figure: any[], tools: any[] }} parts */
export const page = ({ question, text, figure, tools }) =>
  dom.h(
    "div",
    { class: "svp-level" },
    dom.h("div", { class: "svp-ask" }, dom.h("h2", {}, question), dom.h("p", {}, text)),
    dom.h("div", { class: "svp-figure" }, figure),
    dom.h("div", { class: "svp-tools" }, tools),
  );
