// @ts-check
// The clock within a step, under the tree: which phase is shown, the time in it, and on which scale; it can be dragged.
import * as dom from "../kit/dom.js";
import * as labels from "../kit/labels.js";
import * as motion from "../run/motion.js";
import * as phases from "./phases.js";

export class StepClock {
  /** @param {Stage} stage */
  constructor(stage) {
    this.stage = stage;
    this.label = dom.h("b", { class: "sv-phase-label" });
    this.parts = dom.h("span", { class: "sv-clock-parts", "aria-hidden": "true" });
    this.hand = dom.h("i", { class: "sv-clock-hand", "aria-hidden": "true" });
    this.slider = dom.h("input", { type: "range", min: 0, max: 1, step: 0.001, "aria-label": "Time within the step" });
    this.slider.addEventListener("input", () => stage.seek(stage.cursor, Number(this.slider.value)));
    this.slider.addEventListener("keydown", (event) => this.key(event));
    const bar = dom.h("span", { class: "sv-clock-bar" }, this.parts, this.hand, this.slider);
    this.box = dom.h("div", { class: "sv-step-clock", hidden: true }, bar, this.label);
  }

  /** Arrows go from one moment to the next: a level, the pass, a verdict, the commit. */
  key(event) {
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const { stage } = this;
    const of = motion.of(stage.step);
    const last = of.moments.length - 1;
    const at = Math.max(-1, Math.min(last, (stage.moment ?? last) + by));
    stage.seek(stage.cursor, at < 0 ? 0 : motion.settled(of, at));
  }

  get on() {
    const { stage } = this;
    if (!stage.step || stage.table) return false;
    // Its space is reserved in projector mode and slow motion, so that the tree does not move.
    const wanted = stage.slow || stage.projector || (stage.player.playing && stage.player.moves);
    return stage.within < 1 || (wanted && !stage.calm);
  }

  /** @param {Set<string>} changed */
  update(changed) {
    const { stage } = this;
    const { on } = this;
    if (this.box.hidden === on) this.box.hidden = !on;
    if (!on) return;
    this.hand.style.transform = `translateX(${(100 * stage.within).toFixed(2)}%)`;
    if (!["moment", "cursor", "ui", "size"].some((topic) => changed.has(topic))) return;
    if (this.step !== stage.step) this.scale();
    const of = motion.of(stage.step);
    const over = stage.step.veiled ? labels.tally(stage.step) : motion.label(stage.step, of, of.moments.length - 1);
    const label = stage.phase || over;
    dom.say(this.label, label);
    this.slider.value = String(stage.within);
    this.slider.setAttribute("aria-valuetext", label);
  }

  /** The phases, each as wide as its share of this step's motion. */
  scale() {
    this.step = this.stage.step;
    const parts = motion.of(this.step).phases.map(({ name, from, to }) =>
      dom.h("span", { class: `sv-phase-${name === "commit" ? "judge" : name}`, style: `flex:${(to - from).toFixed(3)}` }, name),
    );
    this.parts.replaceChildren(...parts);
    this.box.title = phases.scale(this.step);
  }
}
