"""The inspector's sentences: every rule has one, it fits the verdict and names the tokens and numbers of this node."""

import pytest

from specviz.trace import schema
from tests.support.viewer import cases
from tests.support.viewer.layouts import EXPLAIN

NODES = [
    cases.node(-1, " root", "root"), cases.node(0, " no", "rejected", 0.5, 0.1, 0.2, 0.7),
    cases.node(0, " yes", "accepted", 0.4, 0.6, 1.0, 0.3),
    cases.node(1, " lost", "skipped", 0.4), cases.node(2, " wrong", "rejected", 0.8, 0.2, 0.25, 0.5),
    cases.node(2, " cut", "pruned", 0.01),
    cases.node(2, " again", "resampled", 0.3, 0.1, 0.3, 0.9),
]  # fmt: skip


def explain(node, rule, source="residual"):
    step = cases.step(0, NODES, [2], [2, 9, " own", 0.4, source], rule=rule)
    return node(EXPLAIN, {"step": step})


@pytest.mark.spread(3)
@pytest.mark.parametrize("rule", schema.RULES)
def test_every_rule_of_the_schema_is_explained(node, rule):
    *sentences, ending, title = explain(node, rule)
    assert title != rule or rule not in ("greedy", "match", "ratio")
    for sentence in sentences:
        assert len(sentence) > 25 and sentence.endswith(".")
        for slip in ("undefined", "null", "NaN", "[object", "  ", ".."):
            assert slip not in sentence, sentence
    assert ending == "Stopped after “·yes”: the target wanted “·own”."


def test_a_guess_that_was_chosen_is_weighed_as_certain_whatever_the_drafter_thought(node):
    nodes = [cases.node(-1, " a", "root"), cases.node(0, " b", "accepted", 0.5, 0.4, 0.4, 0.3)]
    step = cases.step(0, nodes, [1], [1, 9, " d", 0.4, "target"], rule="without_replacement")
    assert "min(1, r/q)" in node(EXPLAIN, {"step": step})[1]
    assert "the draft being a certain guess (q = 1)" in node(EXPLAIN, {"step": {**step, "certain": True}})[1]


def test_a_relaxed_run_never_claims_the_target_s_distribution(node):
    assert "own distribution" in explain(node, "ratio")[7]
    for rule in ("relaxed", "typical", "local"):
        assert "keeps the target's own distribution" not in explain(node, rule)[7]


def test_skipped_nodes_say_who_was_in_the_way(node):
    found = explain(node, "greedy", "target")
    assert found[3] == "Not verified: it was drafted after “·no”, which was rejected."
    late = [
        cases.node(-1, " a", "root"),
        cases.node(0, " b", "accepted", 0.5, 0.9, 1.0, 0.1),
        cases.node(0, " c", "skipped", 0.3),
    ]
    found = node(EXPLAIN, {"step": cases.step(0, late, [1], [1, 9, " d", 0.4, "target"], rule="without_replacement")})
    assert found[2] == "Not verified: its sibling “·b” was accepted before its turn came."


def test_below_a_rejected_node_traversal_judged_nothing(node):
    nodes = [cases.node(-1, " a", "root"), cases.node(0, " b", "rejected", 0.5, 0.1, 0.0), cases.node(1, " c", "skipped", 0.4)]
    nodes += [cases.node(0, " d", "accepted", 0.5, 0.9, 1.0, 0.3)]
    found = node(EXPLAIN, {"step": cases.step(0, nodes, [3], [3, 9, " e", 0.4, "residual"], rule="traversal")})
    assert found[2] == "Not verified: it was drafted after “·b”, which was rejected." and "had failed already" not in found[1]


UNTOLD = """
const step = parseStep(given);
return [labels.tally(step), rules.ending(step), rules.explain(step, step.bonus), step.overruled];
"""


def test_drafted_tokens_that_a_server_only_counts_are_not_called_undrafted(node):
    note = {"type": "served", "batch": None, "untold": 6, "drafted": 6}
    step = cases.step(0, [cases.node(-1, " a", "root")], [], [0, 9, " age", 0.5, "target"], verified=6, padded=7, notes=[note])
    tally, ending, own, overruled = node(UNTOLD, step)
    assert tally == "0 of 6 accepted" and ending == "Stopped at the first guess: the target wanted “·age”." and overruled
    assert "Nothing was drafted" not in own and "comes free" not in own


def test_a_verdict_that_is_kept_back_is_not_given_away(node):
    nodes = [cases.node(-1, " a", "root"), cases.node(0, " b", "skipped", 0.5, None)]
    step = {**cases.step(0, nodes, [], None), "emitted": [], "pieces": []}
    body = """
    const step = parseStep(given);
    return [rules.explain(step, step.nodes[1]), labels.tally(step), rules.ending(step)];
    """
    assert node(body, step) == ["Not judged yet: what do you expect?", "1 drafted, not judged yet", ""]
