"""Pruned candidates are counted as they were considered, however few of them travel with the step."""

import json
from functools import cache
from pathlib import Path

import pytest

from specviz.figures.draft_tree import draft_tree
from specviz.trace import store, wire
from specviz.trace.schema import MAX_PRUNED, PRUNED
from tests.support.viewer import cases

TRACES = Path(__file__).resolve().parents[2] / "assets" / "traces"
SAID = """
const { motion, phases } = { motion: modules["run/motion"], phases: modules["tree/phases"] };
return given.map((raw) => {
  const step = parseStep(raw);
  const folded = layout.choose(step, 400, new Set(), true).items.get(layout.PRUNED_CHIP);
  const open = layout.choose(step, 400, new Set(["pruned"])).items.get(layout.PRUNED_CHIP);
  const at = motion.of(step).moments.findIndex(({ phase }) => phase === "prune");
  return [step.counts.cut, folded.node.text, open ? open.node.text : "", motion.label(step, motion.of(step), at)];
});
"""


@cache
def pruning():
    """Of each recording that prunes, the step that pruned most."""
    found = {}
    for path in sorted(TRACES.glob("*.gz")):
        steps = [step for step in store.read(path).steps if any(node.status == PRUNED for node in step.nodes)]
        if steps:
            found[path.name.split(".")[0]] = max(steps, key=lambda step: step.pruned)
    return found


@pytest.mark.slow
def test_every_recording_says_how_many_were_pruned_in_tree_motion_and_figure(node):
    steps = pruning()
    assert {"ddd", "dream", "eagle2", "eagle3", "falcon", "gto", "hivis", "howl", "owl", "reader_batch"} <= set(steps)
    found = node(SAID, [json.loads(wire.line(step, 1)) for step in steps.values()])
    for (name, step), (cut, folded, left, phase) in zip(steps.items(), found, strict=True):
        assert cut == step.pruned == step.considered - step.verified, name
        carried = sum(one.status == PRUNED for one in step.nodes)
        assert folded == f"{cut} pruned" and left == (f"{cut - carried} more pruned" if cut > carried else ""), name
        assert phase == f"Pruning: {step.verified} of {step.considered} are sent to the target", name
        assert f" · {step.considered} drafted tokens" in draft_tree(step).layout.title.text, name
    assert max(step.pruned for step in steps.values()) > 3 * MAX_PRUNED


@pytest.mark.parametrize(("many", "said"), [(MAX_PRUNED, "96 or more"), (MAX_PRUNED - 1, "95")])
def test_an_old_record_full_to_the_limit_says_that_there_may_be_more(node, many, said):
    nodes = [cases.node(-1, " a", "root"), cases.node(0, " b", "accepted", 0.6, 0.7)]
    nodes += [cases.node(0, f" c{at}", "pruned", 0.01) for at in range(many)]
    step = cases.step(0, nodes, [1], [1, 9, " end", 0.5, "target"])
    _, folded, left, phase = node(SAID, [step])[0]
    sent = said.replace(str(many), str(many + 1))
    assert (folded, left, phase) == (f"{said} pruned", "", f"Pruning: 1 of {sent} are sent to the target")
