// @ts-check
// The phases of a step that moves, in a teacher's words, and by what scale its clock goes.
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
    // Of which level the candidates are that do not travel is not in the record.
    const many = level === levels ? `${labels.drafted(step)} tokens in all` : upto === null ? `level ${level} of ${levels}` : `${tokens(upto)} so far`;
    const how = levels > 1 ? "one level after the other" : "one token ahead";
    const left = cut ? " What will be pruned may be left out of the drawing." : "";
    return `The drafter guesses, ${how}: ${many}. Nothing of it is in the output yet.${left}`;
  },
  prune: (step, { sent }) => `Guesses with too little probability are cut. ${sent} of ${labels.drafted(step)} tokens are sent to the target.`,
  verify: (step, { sent }) =>
    sent
      ? `The target reads ${sent === 1 ? "the one guess" : `all ${sent} guesses`} in one forward pass, left to right and all at once. At each it says how probable that token is: p.`
      : "Nothing was drafted. The target's pass yields its own next token, and no more.",
  judge: (step) => `The rule, ${rules.of(step).title}, compares the guesses with what the target said. What fails takes all that was drafted after it with it.`,
  commit: (step) => {
    const own = step.emitted.length > step.counts.kept ? " and the target's own token" : "";
    return `${step.counts.kept ? `${format.count(step.counts.kept, "guess", "guesses")}${own}` : "The target's own token"}: ${tokens(step.emitted.length)} out of one pass of the target.`;
  },
};

/** What is going on in the step on show, and why it takes as long as it does. @param {Stage} stage */
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

/** How the motion's clock goes, and what was recorded. @param {Step} step */
export function scale(step) {
  const { phases, teaching } = motion.of(step);
  const shares = phases.map(({ name, from, to }) => `${name} ${Math.round(100 * (to - from))} %`).join(", ");
  const times = phases.map(({ name, start, end }) => `${name} ${format.time(end - start)}`).join(", ");
  return teaching ? `Teaching scale: ${shares}. Recorded: ${times}.` : `Scale of the recorded times: ${times}.`;
}
