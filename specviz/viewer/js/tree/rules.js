// @ts-check
// The accept rules by name: title, formula and reason; and the sentences for nodes that no rule judges: root, bonus, skipped.
import { DRAWN_RULES } from "../generated.js";
import * as format from "../kit/format.js";
import { count, quote } from "../kit/format.js";
import { FAILED, sentChildren } from "../run/decode.js";
import { REASONS, failed, winner } from "./reasons.js";

/** @param {string} name @param {string} words */
const card = (name, title, words, formula) => [name, { title, words, formula, why: REASONS[name] }];
export const ALL = Object.fromEntries([
  card("none", "no draft", "The target draws its own token.", "x ~ p"),
  card("greedy", "greedy match", "Keep a guess when it is the target's likeliest token.", "keep c  ⇔  c = argmax p"),
  card("match", "sample and match", "The target draws a token; keep the guess when it is the same.", "y ~ p;  keep c  ⇔  c = y"),
  card("ratio", "ratio test", "Keep a guess with the chance p / q, and always when p is not below q.", "keep c  ⇔  draw < min(1, p/q)"),
  card(
    "without_replacement",
    "rejection without replacement",
    "The ratio test with r, what earlier failed guesses left of p.",
    "keep c  ⇔  draw < min(1, r/q);  else r ← norm((r − q)₊)",
  ),
  card(
    "traversal",
    "traversal verification",
    "Multiply the ratios down a path, never above 1, and keep the path with that chance.",
    "w = min(1, w(parent) · p/q);  keep path  ⇔  draw < w",
  ),
  card("typical", "typical acceptance", "Keep a guess when p is above a bar that sinks where the target is unsure.", "keep c  ⇔  p > min(ε, δ · exp(−H(p)))"),
  card("relaxed", "relaxed acceptance", "The ratio test, where p counts the code's look-alikes too.", "keep c  ⇔  draw < (p + Σ neighbours) / q"),
  card("local", "local verification", "Keep a code when it and its look-alikes reach the bar together.", "keep c  ⇔  Σ p(c and neighbours) ≥ bar"),
]);

/** @param {Step} step */
export function of(step) {
  const known = Object.hasOwn(ALL, step.rule) ? ALL[step.rule] : null;
  const name = format.short(step.rule, 40);
  return known || { title: name, words: "", formula: "", why: () => `The rule “${name}” judged this node.` };
}

/** @param {Step} step @param {AnyNode} node */
function skipped(step, node) {
  if (step.veiled) return "Not judged yet: what do you expect?";
  for (let up = step.nodes[node.parent]; up && up.id > 0; up = step.nodes[up.parent]) {
    if (FAILED.has(up.status))
      return `Not verified: it was drafted after ${quote(up.text)}, which was rejected.`;
  }
  if (step.rule === "traversal" && step.end.id !== 0) {
    return `Not verified: the path down to ${quote(step.end.text)} had been kept before its turn came.`;
  }
  const sibling = winner(step, node);
  if (sibling && sibling.id !== "bonus") {
    return `Not verified: its sibling ${quote(sibling.text)} was accepted before its turn came.`;
  }
  return "Not verified: the walk did not come this way.";
}

const ROOT =
  "The last token already in the output. The tree hangs from it; it is not verified, " +
  "and the target reads it with the draft.";
const PRUNED = "Drafted, then cut before the target's pass: too improbable for the tree's size.";

/** The sentence for any node or the bonus of a step. @param {Step} step @param {AnyNode} node */
export function explain(step, node) {
  if (node.id === "bonus") return bonus(step, node);
  if (node.status === "root") return ROOT;
  if (node.status === "pruned") return PRUNED;
  if (node.status === "skipped") return skipped(step, node);
  const strictly =
    node.status === "relaxed" && step.rule !== "relaxed" ? " The strict rule would have rejected it." : "";
  return of(step).why(step, node) + strictly;
}

/** @param {Step} step @param {AnyNode} node */
function bonus(step, { text, source }) {
  const token = quote(text);
  const where = quote(step.end.text);
  if (!step.counts.sent) {
    return `Nothing was drafted, so this pass yields the target's own next token, ${token}.`;
  }
  if (!sentChildren(step, step.end).length && !step.counts.unnamed) {
    return `The draft ends at ${where}, but the target's pass looked one token further: ${token} comes free.`;
  }
  const tried = failed(step, step.end.children);
  if (source === "residual") {
    const all = tried === 1 ? "The guess" : `All ${tried} guesses`;
    const guarantee = DRAWN_RULES.includes(step.rule) ? ", so the output keeps the target's own distribution" : "";
    return `${all} after ${where} failed. ${token} is drawn from what is left of the target's distribution without the drafter's share${guarantee}.`;
  }
  if (!tried) return `The step ends with the target's own token, ${token}.`;
  if (step.rule === "typical") {
    const which = tried === 1 ? "The one guess" : `None of the ${tried} guesses`;
    return `${which} after ${where} ${tried === 1 ? "was not" : "was"} typical enough. The target adds its own token, ${token}.`;
  }
  const none = tried === 1 ? `The one guess after ${where} is not` : `None of the ${tried} guesses after ${where} is`;
  return `${none} the target's own choice. That choice, ${token}, ends the step.`;
}

const CUTS = { eos: "the end-of-text token", budget: "the token budget", context: "the end of the context" };

/** One line under the tree: why the step ended where it did. @param {Step} step */
export function ending(step) {
  if (step.cut) {
    const emitted = count(step.emitted.length, "token");
    return `Cut short by ${CUTS[step.cut] || format.short(step.cut, 30)}: ${emitted} of this step entered the output.`;
  }
  if (!step.bonus) return "";
  const token = quote(step.bonus.text);
  if (!step.counts.sent) return `No draft: the target adds ${token} by itself.`;
  if (!sentChildren(step, step.end).length && !step.counts.unnamed) return `Everything on the path was kept; ${token} comes free.`;
  const where = step.end.id === 0 ? "at the first guess" : `after ${quote(step.end.text)}`;
  return `Stopped ${where}: the target wanted ${token}.`;
}
