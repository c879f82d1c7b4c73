// @ts-check
// The phases of an animated step in a teacher's words, and the time scale of the animation.
import * as dom from "../kit/dom.js";
import * as format from "../kit/format.js";
import * as labels from "../kit/labels.js";
import * as motion from "../run/motion.js";
import * as rules from "./rules.js";

const TITLES = { draft: "Drafting", prune: "Pruning", verify: "Verifying", judge: "Judging", commit: "Committed" };
const tokens = (number) => format.count(number, "token");

const SENTENCES = {
  draft: (step, { levels }, { level }) => {
    const { cut, pruned } = step.counts;
    const upto = cut > pruned ? null : step.nodes.filter((node) => node.id && node.depth <= level).length;
    const once = step.calls < levels && levels > 1;
    // The record does not give the levels of pruned candidates that it omits.
    const many = once || level === levels ? `${labels.drafted(step)} tokens in all` : upto === null ? `level ${level} of ${levels}` : `${tokens(upto)} so far`;
    const how = once ? `${levels} levels at once` : levels > 1 ? "one level at a time" : "one token ahead";
    const left = cut ? " Guesses about to be pruned may be missing here." : "";
    return `The drafter guesses ${how}: ${many}. None of this is in the output yet.${left}`;
  },
  prune: (step, { sent }) => `Improbable guesses are pruned. ${sent} of ${labels.drafted(step)} tokens are sent to the target.`,
  verify: (step, { sent }) =>
    sent
      ? `The target reads ${sent === 1 ? "the one guess" : `all ${sent} guesses at once`}, in one forward pass, and computes each one's probability p.`
      : "Nothing was drafted. The target's pass yields its own next token.",
  judge: (step) => `The acceptance rule, ${rules.of(step).title}, compares the guesses with the target's answer.${step.rule === "local" ? "" : " What was drafted after a failed guess is discarded."}`,
  commit: (step) => {
    const own = step.emitted.length > step.counts.kept ? " and the target's own token" : "";
    return `${step.counts.kept ? `${format.count(step.counts.kept, "guess", "guesses")}${own}` : "The target's own token"}: ${tokens(step.emitted.length)}${step.rule === "local" ? "" : " from one pass of the target"}.`;
  },
};

/** What happens now in the step on screen, and on which time scale it is animated. @param {Stage} stage */
export function card(stage) {
  const { step } = stage;
  const of = motion.of(step);
  const moment = of.moments[stage.moment ?? 0];
  return dom.h(
    "div",
    { class: `sv-phase sv-in-${moment.phase}` },
    dom.h("h3", {}, TITLES[moment.phase]),
    dom.h("p", {}, SENTENCES[moment.phase](step, of, moment)),
    dom.h("p", { class: "sv-mute sv-scale" }, scale(step)),
  );
}

/** The animation's time scale, and the recorded times. @param {Step} step */
export function scale(step) {
  const { phases, teaching } = motion.of(step);
  const shares = phases.map(({ name, from, to }) => `${name} ${Math.round(100 * (to - from))} %`).join(", ");
  const times = phases.map(({ name, start, end }) => `${name} ${format.time(end - start)}`).join(", ");
  return teaching ? `Teaching scale: ${shares}. Recorded: ${times}.` : `To scale with the recorded times: ${times}.`;
}
