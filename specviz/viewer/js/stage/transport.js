// The transport bar: the same for a live and a recorded run.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as labels from "../kit/labels.js";
import { Player } from "../run/player.js";

export class Transport {
  constructor(stage) {
    this.stage = stage;
    this.buttons();
    this.controls();
    const controls = [
      this.first,
      this.back,
      this.play,
      this.step,
      this.reject,
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

  buttons() {
    const { stage } = this;
    const by = (steps) => () => stage.go(stage.cursor + steps);
    const both = (text, icon) => [dom.h("span", {}, text), dom.icon(icon)];
    const over = "The next step where the target overruled the draft (R)";
    this.first = dom.button(dom.icon("first"), "First step (Home)", () => stage.go(0), { "aria-label": "First step" });
    this.back = dom.button(dom.icon("back"), "One step back (←)", by(-1), { "aria-label": "One step back" });
    this.play = dom.button("", "Play or pause (space)", () => stage.player.toggle(), { class: "sv-play" });
    this.step = dom.button(both("Step", "on"), "One step on (→)", by(1), { class: "sv-step-forward" });
    this.reject = dom.button(both("Next rejection", "reject"), over, () => stage.rejection(), { class: "sv-next-rejection" });
    const live = "Show each step as it is computed (End)";
    this.live = dom.button("● Follow live", live, () => stage.followLive(), { class: "sv-follow-live" });
  }

  controls() {
    const { stage } = this;
    this.slider = dom.h("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "Step" });
    this.slider.addEventListener("input", () => stage.go(Number(this.slider.value)));
    const title = "Playback speed: 1× is as fast as it was recorded";
    const speeds = Player.SPEEDS.map((speed) => dom.h("option", { value: speed }, `${speed}×`));
    this.speed = dom.h("select", { "aria-label": "Playback speed", title }, speeds);
    this.speed.addEventListener("change", () => {
      stage.player.speed = Number(this.speed.value);
    });
    this.place = dom.h("output", { class: "sv-step-number" });
  }

  static hints() {
    const key = (name, text) => dom.h("span", {}, dom.h("kbd", {}, name), text);
    const keys = [key("space", "play"), key("← →", "step"), key("R", "rejection"), key("F", "full screen")];
    return dom.h("div", { class: "sv-hints", "aria-hidden": "true" }, keys);
  }

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
    this.slider.max = Math.max(0, stage.last);
    this.slider.value = Math.max(0, stage.cursor);
    this.slider.style.setProperty("--sv-done", `${stage.last > 0 ? (100 * stage.cursor) / stage.last : 0}%`);
    this.slider.setAttribute("aria-valuetext", none ? "no steps yet" : `step ${stage.cursor + 1} of ${stage.last + 1}`);
    dom.say(this.place, none ? "" : `${stage.cursor + 1} / ${stage.last + 1}`);
    if (this.speed.value !== String(player.speed)) this.speed.value = String(player.speed);
    if (changed.has("cursor")) this.announce();
    if (changed.has("run")) this.finished();
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
