// @ts-check
// The transport bar: the same for a live and a recorded run.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as labels from "../kit/labels.js";
import { Player } from "../run/player.js";

export class Transport {
  /** @param {Stage} stage */
  constructor(stage) {
    this.stage = stage;
    const both = (text, icon) => [dom.h("span", {}, text), dom.icon(icon)];
    const over = "The next step where the target overruled the draft (R)";
    this.first = dom.button(dom.icon("first"), "First step (Home)", () => stage.go(0), { "aria-label": "First step" });
    this.back = dom.button(dom.icon("back"), "One step back (←)", () => stage.back(), { "aria-label": "One step back" });
    this.play = dom.button("", "Play or pause (space)", () => stage.player.toggle(), { class: "sv-play" });
    this.step = dom.button(both("Step", "on"), "One step forward (→)", () => stage.go(stage.cursor + 1), { class: "sv-step-forward" });
    this.reject = dom.button(both("Next rejection", "reject"), over, () => stage.rejection(), { class: "sv-next-rejection" });
    this.slow = dom.button(both("Animate step", "slow"), "", () => stage.toggleSlow(), { class: "sv-slow", "aria-label": "Animate step" });
    const live = "Show each step as it is computed (End)";
    this.live = dom.button("● Follow live", live, () => stage.followLive(), { class: "sv-follow-live" });
    this.slider = dom.h("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "Step" });
    this.slider.addEventListener("input", () => this.scrub(Number(this.slider.value)));
    this.slider.addEventListener("keydown", (event) => this.arrow(event));
    const title = "Playback speed: 1× is as fast as it was recorded";
    const speeds = Player.SPEEDS.map((speed) => dom.h("option", { value: speed }, `${speed}×`));
    this.speed = dom.h("select", { "aria-label": "Playback speed", title }, speeds);
    this.speed.addEventListener("change", () => {
      stage.player.speed = Number(this.speed.value);
    });
    this.place = dom.h("output", { class: "sv-step-number" });
    const controls = [
      this.first,
      this.back,
      this.play,
      this.step,
      this.reject,
      this.slow,
      this.slider,
      this.place,
      this.speed,
      this.live,
    ];
    const named = { class: "sv-transport", role: "group", "aria-label": "Playback" };
    this.bar = dom.h("footer", named, controls, Transport.hints());
    this.heard = dom.h("div", { class: "sv-live-region", role: "status", "aria-live": "polite" });
    stage.root.append(this.bar, this.heard);
    this.spoken = 0;
  }

  /** In slow motion the slider goes through the steps' motions, otherwise from one finished step to the next. @param {number} value */
  scrub(value) {
    const { stage } = this;
    if (!stage.slow) return stage.go(value);
    const step = Math.min(Math.floor(value), stage.last);
    return stage.seek(step, value - step);
  }

  /** An arrow key moves by a whole step in slow motion too, where the slider has much smaller ones. */
  arrow(event) {
    const { stage } = this;
    if (!stage.slow || !event.key.startsWith("Arrow")) return;
    event.preventDefault();
    if (["ArrowRight", "ArrowUp"].includes(event.key)) stage.go(stage.cursor + 1);
    else stage.back();
  }

  static hints() {
    const key = (name, text) => dom.h("span", {}, dom.h("kbd", {}, name), text);
    const keys = [key("space", "play"), key("← →", "step"), key("R", "rejection"), key("A", "animate"), key("F", "full screen")];
    return dom.h("div", { class: "sv-hints", "aria-hidden": "true" }, keys);
  }

  /** @param {Set<string>} changed */
  update(changed) {
    const { stage } = this;
    const { player } = stage;
    const none = stage.last < 0;
    for (const control of [this.first, this.back, this.play, this.step, this.reject, this.slider]) control.disabled = none;
    if (this.played !== player.playing) {
      this.played = player.playing;
      this.play.replaceChildren(dom.icon(player.playing ? "pause" : "play"), player.playing ? "Pause" : "Play");
    }
    this.live.hidden = !stage.running;
    this.live.setAttribute("aria-pressed", String(stage.follow && stage.running));
    this.motion(none);
    if (stage.moment === null || changed.has("moment") || changed.has("ui")) this.slide(none);
    dom.say(this.place, none ? "" : `${stage.cursor + 1} / ${stage.last + 1}`);
    if (this.speed.value !== String(player.speed)) this.speed.value = String(player.speed);
    if (changed.has("cursor") || changed.has("moment")) this.announce();
    if (changed.has("run")) this.finished();
  }

  /** The slider's position. In a moving step it changes only with each moment, since moving the thumb makes the browser lay out. */
  slide(none) {
    const { stage, slider } = this;
    const { slow, last, cursor, within } = stage;
    const most = Math.max(0, slow ? last + 1 : last);
    const value = Math.max(0, slow ? cursor + within : cursor);
    Object.assign(slider, { step: slow ? "any" : 1, max: most, value });
    slider.style.setProperty("--sv-done", `${most > 0 ? (100 * value) / most : 0}%`);
    const phase = stage.phase ? `, ${stage.phase}` : "";
    slider.setAttribute("aria-valuetext", none ? "no steps yet" : `step ${cursor + 1} of ${last + 1}${phase}`);
  }

  motion(none) {
    const { stage, slow } = this;
    slow.disabled = none || stage.calm;
    slow.setAttribute("aria-pressed", String(stage.slow));
    const how = "Slow motion: show how each step is drafted, verified, judged and committed (A)";
    const off = "Off, because this computer is set to show less motion";
    if (slow.title !== (stage.calm ? off : how)) slow.title = stage.calm ? off : how;
  }

  /** While playing, at most one announcement in three seconds: nobody can listen faster. */
  announce() {
    const { stage } = this;
    const moving = stage.player.playing || (stage.running && stage.follow);
    const now = performance.now();
    if (moving && now - this.spoken < 3000) return;
    this.spoken = now;
    dom.say(this.heard, labels.sentence(stage));
  }

  finished() {
    const { trace } = this.stage;
    if (!trace.end || this.announced === trace.end || trace.mode !== "live") return;
    this.announced = trace.end;
    dom.say(this.heard, `The run has ended: ${trace.end.reason}, ${format.count(trace.steps.length, "step")}.`);
  }
}
