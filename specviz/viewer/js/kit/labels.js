// @ts-check
// The names and the order of the verdicts, from palette.py: the same in the legend, the inspector, the table and for screen readers.
import * as format from "./format.js";
import { LABELS, LEGEND } from "../generated.js";

export const of = (status) => LABELS[status] || status;

/** Verdicts for the legend: those of the run, and while it is running also the usual ones. @param {Recording} trace */
export function legendStatuses(trace) {
  const usual = ["accepted", "rejected", "skipped", "bonus"];
  const statuses = new Set([...(trace.end ? [] : usual), ...trace.seen]);
  if (trace.steps.some((step) => step.bonus)) statuses.add("bonus");
  return Object.keys(LEGEND).filter((status) => statuses.has(status));
}

/** "258 pruned": all nodes pruned before the pass. @param {Step} step */
export const pruned = ({ counts, more }) => `${counts.cut}${more} pruned`;

/** "264", or "264 or more": all drafted nodes. @param {Step} step */
export const drafted = ({ counts, more }) => counts.drafted + more;

/** "4 of 24 accepted": of the drafted nodes that the target has scored. @param {Step} step */
export function tally(step) {
  const { sent } = step.counts;
  if (!sent) return "nothing drafted";
  return step.veiled ? `${sent} drafted, not judged yet` : `${step.counts.kept} of ${sent} accepted`;
}

/** "Step 12: 4 of 24 accepted, bonus ·colour". @param {Stage} stage */
export function sentence(stage) {
  const step = stage.shown;
  if (!step) return "";
  if (stage.phase && step.veiled) return `Step ${stage.cursor + 1}: ${stage.phase}`;
  const bonus = step.bonus ? `, bonus ${format.token(step.bonus.text, 30)}` : "";
  return `Step ${stage.cursor + 1}: ${tally(step)}${bonus}${step.cut ? `, cut by ${step.cut}` : ""}`;
}
