// @ts-check
// Why a guess was kept or not: for every accept rule of the schema, one plain sentence about this node.
import { count, probability, quote } from "../kit/format.js";
import { FAILED, sentChildren, weigh } from "../run/decode.js";

const KEPT = new Set(["accepted", "relaxed"]);

/** @param {AnyNode} node */
const isKept = (node) => KEPT.has(node.status);
/** @param {AnyNode} node */
const below = (node) => (node.children.length ? ", and all that was drafted below it goes with it" : "");
/** @param {AnyNode} node */
const fate = (node) => (isKept(node) ? "so it is kept" : `so it is dropped${below(node)}`);
/** @param {Step} step @param {AnyNode} node */
const after = (step, node) => quote(step.nodes[node.parent].text);
/** @param {Step} step */
export const failed = (step, ids) => ids.filter((id) => FAILED.has(step.nodes[id].status)).length;

/** @param {AnyNode} node @param {Step} step */
function ordinal(node, step) {
  const among = sentChildren(step, step.nodes[node.parent]).length;
  return among > 1 ? `guess ${node.rank + 1} of ${among}` : "the only guess";
}

/** The token that won at `node`'s place: the accepted sibling, else the bonus if it hangs there. @param {Step} step @param {AnyNode} node */
export function winner(step, node) {
  const sibling = step.nodes[node.parent].children.map((id) => step.nodes[id]).find(isKept);
  if (sibling) return sibling;
  return step.bonus && step.bonus.parent === node.parent ? step.bonus : null;
}

/** "The draw 0.63 is not below 0.20, ", or nothing if nothing was drawn. @param {AnyNode} node */
function coin(node) {
  if (node.draw === null || node.threshold === null) return "";
  const where = node.draw < node.threshold ? "below" : "not below";
  return `The draw ${probability(node.draw)} is ${where} ${probability(node.threshold)}`;
}

/** The coin and what follows from it, as one sentence with or without the coin. @param {AnyNode} node */
function verdict(node, tail = "") {
  const coinText = coin(node);
  const end = `${fate(node)}${tail}.`;
  return coinText ? `${coinText}, ${end}` : end[0].toUpperCase() + end.slice(1);
}

/** Target-first rules: the choice is made, then looked for among the children. */
const chosen = (how) => (step, node) => {
  const opening = how(step, node);
  if (isKept(node)) {
    return `${opening} ${quote(node.text)}. It was drafted (${ordinal(node, step)}), so it is kept and the walk goes on.`;
  }
  const won = winner(step, node);
  const what = won ? `${quote(won.text)}, not ${quote(node.text)}` : `a token other than ${quote(node.text)}`;
  return `${opening} ${what}. So this guess is dropped${below(node)}.`;
};

const greedy = chosen((step, node) => `After ${after(step, node)} the target's likeliest token is`);

const match = chosen(
  (step, node) =>
    `After ${after(step, node)} the target first draws its own token, with the random numbers of this position:`,
);

/** @param {Step} step @param {AnyNode} node */
function ratio(step, node) {
  if (isKept(node) && node.threshold !== null && node.threshold >= 1) {
    return "The target likes this token at least as much as the drafter did (p ≥ q), so it is kept whatever the draw.";
  }
  const share =
    step.certain || node.q === null
      ? "The draft is a certain guess (q = 1), so it is kept with probability p."
      : "A guess drawn from q is kept with probability min(1, p/q).";
  const tail = isKept(node)
    ? ""
    : ". Its place goes to a token drawn from (p − q)₊: what the target likes more than the drafter";
  return `${share} ${verdict(node, tail)}`;
}

/** @param {Step} step @param {AnyNode} node */
function withoutReplacement(step, node) {
  const tried = failed(step, step.nodes[node.parent].children.slice(0, node.rank));
  const left = tried
    ? `${count(tried, "guess", "guesses")} before it failed; what they stood for is taken out of the target's distribution, which leaves r.`
    : "It is tried first, so r is still the target's own distribution p.";
  const share = step.certain || node.q === null ? "r, the draft being a certain guess (q = 1)" : "min(1, r/q)";
  const tail = isKept(node) ? "" : ", and its drafted share leaves r";
  return `Guesses are tried in the order they were drawn. ${left} It is kept with probability ${share}. ${verdict(node, tail)}`;
}

/** @param {Step} step @param {AnyNode} node */
function traversal(step, node) {
  const coinText = coin(node);
  const order = "Whole paths are judged, deepest node first";
  const weighs = node.threshold === null ? "" : ` The path down to here weighs ${probability(node.threshold)}.`;
  if (isKept(node) && coinText) return `${order}.${weighs} ${coinText}, so all of it is kept at once.`;
  if (isKept(node)) return `${order}. This node lies on the path that was kept, so it needed no draw of its own.`;
  const below = sentChildren(step, node);
  const had = below.length && below.every((id) => step.nodes[id].status !== "skipped") ? "; everything below this one had failed already" : "";
  const so = coinText ? `${coinText}, so` : "So";
  return (
    `${order}${had}.${weighs} ${so} it is taken off the tree. What it leaves of the target's distribution makes its next sibling, ` +
    "or in the end its parent, weigh more."
  );
}

/** @param {Step} step @param {AnyNode} node */
function typical(step, node) {
  const bar =
    "A guess may stay when the target finds it typical: p above a bar that sinks where the target is unsure.";
  if (node.threshold === null || node.p === null) return `${bar} ${verdict(node)}`;
  const numbers = `Here the bar is ${probability(node.threshold)} and p is ${probability(node.p)}`;
  if (!isKept(node) && node.p > node.threshold) {
    return `${bar} ${numbers}: typical enough, but another branch went further, and only one path can stay.`;
  }
  return `${bar} ${numbers}, ${fate(node)}.`;
}

/** What the strict ratio rule would have decided, if the numbers tell. @param {Step} step @param {AnyNode} node */
function strict(step, node) {
  const weighed = weigh(step, node);
  if (!weighed || node.draw === null) return "";
  const bar = Math.min(1, weighed.p / (weighed.q || 1));
  const outcome = node.draw < bar ? "kept too" : "rejected";
  const what = `${weighed.left ? "r" : "p"}${weighed.q === 1 ? "" : "/q"}`;
  const left = weighed.left ? ", with what earlier guesses left" : "";
  return ` Strictly (${what} = ${probability(bar)}${left}) it would have been ${outcome}.`;
}

/** @param {Step} step @param {AnyNode} node */
const relaxed = (step, node) =>
  "A code may stand for its nearest latent codes, so the target's probability of all of them together " +
  `${node.draw === null ? "must lead" : `is set against ${(weigh(step, node) || { q: 0 }).q === 1 ? "1, as the guess was chosen, not drawn" : "the drafter's"}`}. ` +
  `${verdict(node)}${strict(step, node)}`;

/** @param {Step} step @param {AnyNode} node */
function local(step, node) {
  const alone = node.p === null ? "" : `, the code alone has ${probability(node.p)}`;
  const bar = node.threshold === null ? "" : ` The bar is ${probability(node.threshold)}${alone}.`;
  if (node.status === "resampled") {
    return `This code, or one beside it, had too little support, so the target drew this place again.${bar}`;
  }
  const rule =
    "Each code is judged alone: the target's probability of it and its nearest latent codes must reach a fixed bar.";
  const end = isKept(node)
    ? "It does, so the code stays."
    : "It does not, so this place and its neighbours are drawn again.";
  return `${rule}${bar} ${end}`;
}

const none = () => "Nothing is drafted: the target adds one token a pass.";

/** Rule -> the sentence about a node that it judged. */
export const REASONS = {
  none, greedy, match, ratio, without_replacement: withoutReplacement, traversal, typical, relaxed, local,
};
