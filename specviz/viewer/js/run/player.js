// @ts-check
// Plays a run back at its recorded pace, times a chosen speed. Only the playback is slowed down, never the engine.
// A step that is on screen long enough is shown as a motion; in slow motion every step is, at a pace of its own.
import * as motion from "./motion.js";

const VISIBLE = 1e9; // nanoseconds on screen at which a step is shown as a motion

export class Player {
  /** @param {Stage} stage */
  playing = false;
  speed = 1;
  frame = 0;
  before = 0;
  single = false;
  /** @type {Step[] | null} */
  steps = null;
  count = 0;
  median = 0;

  /** @param {Stage} stage */
  constructor(stage) {
    this.stage = stage;
  }

  static SPEEDS = [0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10];

  /** The fastest of the slow speeds at which a typical step stays on screen for at least 0.6 s. @param {Recording} trace */
  static comfortable(trace) {
    const target = Player.typical(trace) / 6e8;
    return Player.SPEEDS.filter((speed) => speed >= 0.05 && speed <= Math.max(0.05, target)).pop() || 0.05;
  }

  /** Median time of a step, in nanoseconds. @param {Recording} trace */
  static typical(trace) {
    const times = trace.steps.map((step) => step.total).sort((a, b) => a - b);
    return times[Math.floor(times.length / 2)] || 1;
  }

  /** Whether steps are shown as motions: in slow motion, and if a typical one stays on screen long enough. */
  get moves() {
    const { stage } = this;
    if (stage.calm || stage.table || stage.last < 0) return false;
    return stage.slow || this.typical() / this.speed >= VISIBLE;
  }

  /** The same for the run on the stage, computed again when steps have arrived. */
  typical() {
    const { steps } = this.stage.trace;
    if (this.steps !== steps || this.count !== steps.length) this.median = Player.typical(this.stage.trace);
    Object.assign(this, { steps, count: steps.length });
    return this.median;
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  play() {
    const { stage } = this;
    if (stage.last < 0 || this.playing) return;
    const moves = this.moves;
    if (stage.within >= 1) this.single = false;
    if (stage.cursor >= stage.last && stage.within >= 1 && !stage.running) stage.show(0, moves ? 0 : undefined, moves ? 0 : 1);
    this.playing = true;
    stage.follow = false;
    this.before = 0;
    this.next();
    stage.touch("ui");
  }

  /** Wait at the first step, drawn whole, until `begin`, if the run has just opened and the reader has not moved yet. */
  hold() {
    const { stage } = this;
    if (!this.playing || stage.cursor || stage.picked || stage.slow) return false;
    this.stop();
    stage.show(0);
    stage.touch("ui");
    return (this.held = true);
  }

  /** Play a run that was held, unless the reader has moved or paused meanwhile. */
  begin() {
    if (this.held && !this.stage.picked) this.play();
  }

  /** Play the current step from its beginning, and no further. */
  once() {
    this.stop();
    this.stage.seek(this.stage.cursor, 0);
    this.single = true;
    this.play();
  }

  pause() {
    this.held = false;
    if (!this.playing) return;
    this.stop();
    this.stage.touch("ui", "moment");
  }

  stop() {
    this.playing = false;
    cancelAnimationFrame(this.frame);
  }

  next() {
    this.frame = requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    if (!this.playing) return;
    const { stage } = this;
    // A tab that was hidden resumes where it stopped, not far ahead.
    const passed = this.before ? Math.min(now - this.before, 250) : 0;
    this.before = now;
    if (this.moves) this.move(passed);
    else this.advance(stage.clock + passed * 1e6 * this.speed);
    if (this.playing) this.next();
  }

  /** Milliseconds that the motion of a step takes: as long as the step at this speed, in slow motion no less than its pace. @param {Step} step */
  lasts(step) {
    const recorded = step.total / 1e6 / this.speed;
    return this.stage.slow ? Math.max(motion.pace(motion.of(step)), recorded) : Math.max(1, recorded);
  }

  /** The phase that is shown of a moving step. */
  get phase() {
    const { stage } = this;
    return stage.moment === null ? "" : motion.of(stage.step).moments[stage.moment].phase;
  }

  /** Whether moments follow each other faster than they can be read. */
  get hurries() {
    const { stage, playing } = this;
    if (!playing || stage.moment === null) return false;
    const of = motion.of(stage.step);
    return (motion.settled(of, stage.moment) - of.moments[stage.moment].at) * this.lasts(stage.step) < 220;
  }

  /** Continue the motion of the current step, or begin that of the next one. */
  move(passed) {
    const { stage } = this;
    const { steps, starts } = stage.trace;
    let { cursor, within } = stage;
    if (within >= 1) {
      if (cursor >= stage.last) return this.end();
      cursor += 1;
      within = motion.timeOf(motion.of(steps[cursor]), Math.max(0, stage.clock - starts[cursor]));
    }
    within += passed / this.lasts(steps[cursor]);
    if (within < 1) return stage.at(cursor, within);
    stage.show(cursor);
    return this.single ? this.pause() : undefined;
  }

  end() {
    this.pause();
    if (this.stage.running) this.stage.followLive();
  }

  /** Show the run as it stood at `clock`: the last step finished by then. */
  advance(clock) {
    const { stage } = this;
    const { ends } = stage.trace;
    let cursor = stage.cursor;
    while (cursor < stage.last && ends[cursor + 1] <= clock) cursor += 1;
    const done = clock >= stage.total;
    stage.show(cursor, Math.min(clock, stage.total));
    if (done) this.end();
  }
}
