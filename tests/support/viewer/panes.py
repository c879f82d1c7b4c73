"""A panel of the inspector drawn under node: just enough of a page, and a step that carries one note."""

from __future__ import annotations

from typing import Any

from tests.support.viewer import cases
from tests.support.viewer.node import Evaluate

# Enough of a page for a panel to be built in: elements that remember what they are given.
PAGE = """
const made = (tag) => {
  const one = { tag, attributes: {}, children: [], classList: { add() {}, toggle() {} }, style: {} };
  one.setAttribute = (name, value) => { one.attributes[name] = String(value); };
  one.append = (...more) => one.children.push(...more);
  one.replaceChildren = (...more) => { one.children = more; };
  one.addEventListener = () => {};
  one.querySelector = () => null;
  return one;
};
globalThis.document = { createElement: made, createElementNS: (_, tag) => made(tag) };
const said = (one) => (typeof one === "string" ? one : (one.children || []).map(said).join(" "));
const all = (one) => (typeof one === "string" ? [] : [one, ...(one.children || []).flatMap(all)]);
const tip = { over() {} };
const still = { moments: {}, selectedNote: null, tab: "method", tip, pick() {}, touch() {} };
const stageOf = (step) => ({ step, trace: { steps: [step], run: null }, cursor: 0, column: 400, tall: 400, u: 1, ...still });
const step = parseStep(given.step);
const stage = stageOf(step);
const pane = made("div");
pane.clientWidth = 426;
pane.clientHeight = 420;
noteRegistry.draw(pane, stage);
const classes = all(pane).map((one) => one.attributes.class || "");
"""


def step(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    nodes = [
        cases.node(-1, " the", "root"), cases.node(0, " sky", "accepted", 0.8, 0.9),
        cases.node(0, " sea", "rejected", 0.1, 0.1), cases.node(1, " is", "accepted", 0.6, 0.7),
        cases.node(1, " was", "rejected", 0.3, 0.1), cases.node(2, " foam", "skipped", 0.5),
        cases.node(2, " and", "pruned", 0.1),
    ]  # fmt: skip
    for place, token in enumerate((1, 2, 3, 4, 5, 6, 7)):
        nodes[place][1] = token
    return cases.step(0, nodes, [1, 3], [3, 8, " blue", 0.5, "target"], notes=[{"type": kind, **data}])


def drawn(node: Evaluate, kind: str, data: dict[str, Any], ask: str = "[said(pane), classes]") -> Any:
    return node(PAGE + f"return {ask};", {"step": step(kind, data)})


JUNK: tuple[Any, ...] = (None, -1, 1e300, "x", [], {}, [None], [{"runs": ["a", -4, None]}], [[1]])
