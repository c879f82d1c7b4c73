// @ts-check
// Two synchronised stages: a step on one shows the corresponding step on the other.
import * as dom from "../kit/dom.js";

/** Tokens written by the end of each step. */
function tokensByStep(viewer) {
  let total = 0;
  return viewer.trace.steps.map((step) => (total += step.emitted.length));
}

/** The step of `other` that corresponds to step `at` of `viewer`, by tokens written or by the clock. */
function matchingStep(viewer, at, other, how) {
  const [mine, theirs] = how === "time" ? [viewer.trace.ends, other.trace.ends] : [tokensByStep(viewer), tokensByStep(other)];
  const place = theirs.findIndex((value) => value >= mine[at]);
  return place < 0 ? theirs.length - 1 : place;
}

function stage(id) {
  const host = document.querySelector(`${id} .specviz-host`);
  return host && host.specviz ? host.specviz.stage : null;
}

/** @type {any} */
let alignment = null;
let leading = false;

/** Let the other stage of the pair follow the stage in `side`. @param {number} side */
function alignOther(side) {
  const [viewer, other] = [stage(side), stage(side === alignment.left ? alignment.right : alignment.left)];
  if (alignment.how === "off" || !viewer || !other || viewer.cursor < 0 || other.last < 0 || viewer.running || other.running) return;
  leading = true;
  other.player.pause();
  other.show(matchingStep(viewer, viewer.cursor, other, alignment.how));
  leading = false;
}

/** One time scale for the pair: one length for both autoregressive baselines, or the same seconds if the prompts differ. */
function oneScale() {
  const pair = [alignment.left, alignment.right].flatMap((id) => stage(id) || []);
  if (pair.length < 2 || pair.some((viewer) => viewer.last < 0 || viewer.running)) return;
  const plain = pair.map(({ trace: { end } }) => (end && end.baseline ? end.baseline.token_ns : []).reduce((sum, ns) => sum + ns, 0));
  const prompts = pair.map(({ trace: { run } }) => run && run.prompt);
  const same = plain.every(Boolean) && prompts[0] === prompts[1];
  const unit = same ? plain : [1, 1];
  const most = Math.max(...pair.map((viewer, side) => Math.max(viewer.total, plain[side]) / unit[side]));
  pair.forEach((viewer, side) => {
    if (viewer.span === most * unit[side]) return;
    viewer.span = most * unit[side];
    viewer.touch("data");
  });
}

function hear(event) {
  if (leading) return;
  oneScale();
  const side = [alignment.left, alignment.right].find((id) => dom.closest(event, id));
  if (side) alignOther(side);
}

/** Align the stages at the selectors `left` and `right` by "token" or "time"; "off" lets each move on its own. */
export function align(left, right, how) {
  if (!alignment) document.addEventListener("specviz:step", hear);
  alignment = { left, right, how };
  oneScale();
  alignOther(left);
}
