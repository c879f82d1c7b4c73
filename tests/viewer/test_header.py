"""The stage's head: that other programs kept a run waiting is a chip, and no line above the run."""

from __future__ import annotations

import pytest

from tests.support.viewer import cases
from tests.support.viewer.node import Evaluate

BUSY = "Other programs kept this run waiting."
BODY = """
const element = (tag) => ({
  tag, kids: [], attributes: {}, append(...kids) { this.kids.push(...kids); },
  setAttribute(name, value) { this.attributes[name] = value; }, addEventListener() {},
});
globalThis.document = { createElement: element };
const { Header } = modules["stage/header"];
const one = feed();
one.accept(given);
const told = (part) => (typeof part === "object" ? part.kids.map(told).join(" | ") : part);
return [Header.messages(one.trace), Header.busy(one.trace.end).map((chip) => [chip.tag, told(chip)])];
"""


@pytest.mark.parametrize("message", ["", "The server said more."])
def test_a_busy_machine_is_a_chip_that_opens(message: str, node: Evaluate) -> None:
    text = cases.text([cases.run(), cases.chain(0, 3, 3), cases.end(2, message=message, busy=BUSY)])
    lines, chips = node(BODY, text)
    assert lines == ([["note", message]] if message else [])
    assert chips == [["details", f"busy machine | {BUSY}"]]


def test_a_quiet_machine_has_no_chip(node: Evaluate) -> None:
    lines, chips = node(BODY, cases.text([cases.run(), cases.chain(0, 3, 3), cases.end(2)]))
    assert (lines, chips) == ([], [])
