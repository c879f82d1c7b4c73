// Plays a run back at the pace it was recorded with, times a chosen speed. The engine is never slowed down: only this is.

export class Player {
  constructor(stage) {
    Object.assign(this, { stage, playing: false, speed: 1, frame: 0, before: 0 });
  }

  static SPEEDS = [0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10];

  /** The fastest of the slow speeds at which a typical step stays on screen for at least 0.6 s. */
  static comfortable(trace) {
    const times = trace.steps.map((step) => step.total).sort((a, b) => a - b);
    const typical = times[Math.floor(times.length / 2)] || 1;
    const target = typical / 6e8;
    return Player.SPEEDS.filter((speed) => speed >= 0.05 && speed <= Math.max(0.05, target)).pop() || 0.05;
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  play() {
    const { stage } = this;
    if (stage.last < 0 || this.playing) return;
    if (stage.cursor >= stage.last && !stage.running) stage.show(0);
    this.playing = true;
    stage.follow = false;
    this.before = 0;
    this.next();
    stage.touch("ui");
  }

  pause() {
    if (!this.playing) return;
    this.stop();
    this.stage.touch("ui");
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
    // A tab that was hidden comes back where it left, not far ahead.
    const passed = this.before ? Math.min(now - this.before, 250) : 0;
    this.before = now;
    this.advance(stage.clock + passed * 1e6 * this.speed);
    if (this.playing) this.next();
  }

  /** Show the run as it stood at `clock`: the last step finished by then. */
  advance(clock) {
    const { stage } = this;
    const { ends } = stage.trace;
    let cursor = stage.cursor;
    while (cursor < stage.last && ends[cursor + 1] <= clock) cursor += 1;
    const done = clock >= stage.total;
    stage.show(cursor, Math.min(clock, stage.total));
    if (!done) return;
    this.pause();
    if (stage.running) stage.followLive();
  }
}
