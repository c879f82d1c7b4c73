"""Stories of steps: which note is told, what its rule says of a node, and how pruned nodes make room for the judged."""

from __future__ import annotations

from typing import Any

from tests.support.viewer import cases
from tests.support.viewer.layouts import drawn, overlaps
from tests.support.viewer.node import Evaluate


def pruned(many: int, kept: int = 30) -> dict[str, Any]:
    """A bushy step of which ``many`` leaves were pruned before the pass."""
    nodes = [cases.node(-1, " a", "root"), cases.node(0, " yes", "accepted", 0.6, 0.8)]
    nodes += [cases.node(0, f" no{at}", "rejected", 0.1, 0.01) for at in range(4)]
    nodes += [cases.node(2 + at % 4, f" k{at}", "skipped", 0.2) for at in range(kept)]
    nodes += [cases.node(1 + at % 5, f" p{at}", "pruned", 0.01) for at in range(many)]
    return cases.step(0, nodes, [1], [1, 9, " end", 0.5, "target"])


def test_many_pruned_nodes_become_one_count_where_they_would_take_the_others_words(node: Evaluate) -> None:
    made = drawn(node, pruned(90), width=700, height=330)
    chips = [item for item in made["items"] if item["kind"] == "chip"]
    assert [(chip["label"], chip["hidden"], chip["parent"]) for chip in chips] == [("90 pruned", 90, 0)]
    assert not any(item["label"].startswith("·p") for item in made["items"])
    assert overlaps(made["items"]) == []


def test_a_few_pruned_nodes_stay_in_their_places(node: Evaluate) -> None:
    made = drawn(node, pruned(6, kept=8), width=700, height=330)
    assert sum(item["kind"] == "chip" for item in made["items"]) == 0
    assert len(made["items"]) == 6 + 8 + 6 + 1


def test_asking_for_the_pruned_shows_them_all(node: Evaluate) -> None:
    body = """
    const step = parseStep(given);
    const opened = new Set(["pruned"]);
    const made = layout.tree(step, room({ opened }));
    return [...made.items.values()].filter((item) => item.kind === "node").length;
    """
    step = pruned(90)
    assert node(body, step) == len(step["nodes"])


def test_the_method_s_own_story_comes_before_that_of_the_growth(node: Evaluate) -> None:
    body = """
    const shown = (types, selectedNote) =>
      noteRegistry.chosen({ step: { notes: types.map((type) => ({ type })) }, selectedNote });
    const both = ["growth", "beam_mass"];
    return [shown(both, null), shown(both, "growth"), shown(["growth"], "beam_mass"), shown([], null)];
    """
    found = node(body)
    assert [one and one["type"] for one in found] == ["beam_mass", "growth", "growth", None]
