// @ts-check
// Projector mode: what the last row of a class can read. Output, tree and one sentence in large type, driven by keys alone.
import * as dom from "../kit/dom.js";

const SMALLEST = 18 / 11; // so that the smallest text in the tree, 11 px at size 1, has 18
const DESK = 1000; // width in pixels below which the screen is no projector, and the type grows less
const KEYS = [
  ["space", "play or pause"],
  ["← →", "one step back or forward"],
  ["A", "slow motion: animate each step"],
  ["R", "next rejection"],
  ["Home End", "first or last step"],
  ["V", "picture with verdicts or plain"],
  ["+ − 0", "zoom the tree"],
  ["E", "read the text, step by step"],
  ["F", "full screen"],
  ["P", "projector mode"],
  ["?", "these keys"],
  ["Esc", "leave"],
];

/** Size of everything, 1 for 12.5 px text, on a stage of this size: the same relative size on every projector. */
export const scale = ({ width, height }) => Math.max(width < DESK ? 1.2 : SMALLEST, Math.min(width / 1280, height / 720) * SMALLEST);

export class Projector {
  /** @param {Stage} stage */
  constructor(stage) {
    this.stage = stage;
    const rows = KEYS.map(([key, text]) => [dom.h("dt", {}, key.split(" ").map((name) => dom.h("kbd", {}, name))), dom.h("dd", {}, text)]);
    const named = { class: "sv-keys", role: "dialog", "aria-label": "Keys", hidden: true };
    // For a touch screen, which has no Escape.
    const leave = dom.button("Leave projector mode", "", () => this.turn(false), { class: "sv-leave" });
    this.keys = dom.h("div", named, dom.h("h3", {}, "Keys"), dom.h("dl", {}, rows), leave);
    this.hint = dom.h("div", { class: "sv-keys-hint", "aria-hidden": "true" }, dom.h("kbd", {}, "?"), " keys");
    this.hint.addEventListener("click", () => stage.toggleKeys());
    this.spoken = dom.h("div", { class: "sv-live-region", role: "status" });
    stage.root.append(this.keys, this.hint, this.spoken);
    stage.toggleProjector = () => this.turn(!stage.projector);
    stage.toggleKeys = () => this.showKeys(this.keys.hidden);
    stage.escape = () => this.escape();
    this.onFullScreen = () => this.left();
    document.addEventListener("fullscreenchange", this.onFullScreen);
  }

  update() {}

  /** Turn the mode on, in full screen if the browser allows it, or off. */
  turn(on) {
    const { stage } = this;
    if (on === stage.projector) return;
    const full = document.fullscreenElement === stage.root;
    Object.assign(stage, { projector: on, table: false, picked: false, zoom: 1 });
    stage.root.toggleAttribute("data-projector", on);
    this.showKeys(false);
    stage.root.classList.remove("sv-full-screen");
    if (on && !full) stage.fullScreen();
    if (!on && full) document.exitFullscreen();
    stage.root.focus({ preventScroll: true });
    dom.say(this.spoken, on ? "Projector mode. Press ? for the keys, Escape to leave." : "Projector mode is off.");
    Object.assign(stage, { width: 0 });
    stage.measure();
    stage.touch("ui", "tree", "data", "moment");
  }

  showKeys(on) {
    this.keys.hidden = !on;
  }

  /** Escape hides the keys, then leaves the mode. */
  escape() {
    if (this.keys.hidden) this.turn(false);
    else this.showKeys(false);
  }

  /** The browser's own Escape ends full screen, which also ends the mode. */
  left() {
    if (this.stage.projector && !document.fullscreenElement) this.turn(false);
  }

  destroy() {
    document.removeEventListener("fullscreenchange", this.onFullScreen);
  }
}
