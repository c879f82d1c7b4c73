"""The numbers of a run, against ones worked out by hand, and the identities that tie them together."""

import pytest
from msgspec.structs import replace

from specviz.trace import metrics
from specviz.trace.schema import Baseline, Bonus, Divergence, Nanoseconds, Node, Step
from tests.support.traces.samples import sample_trace

MS = 1_000_000


def made(parents, path, *, cut=None, keep=None):
    """A step. Its tree is one parent a node ("0012": two children of the root, then one of each); P is pruned."""
    nodes = [Node(-1, 9, "r", status="root")]
    for place, parent in enumerate(parents.replace("P", ""), start=1):
        nodes.append(Node(int(parent), place, "x", status="accepted" if place in path else "rejected"))
    nodes += [Node(0, 77, "x", status="pruned")] * parents.count("P")
    tokens = [*(nodes[place].token for place in path), 99][:keep]
    end = path[-1] if path else 0
    spent = Nanoseconds(draft=10 * MS, verify=5 * MS, judge=2 * MS, commit=2 * MS, host=1 * MS)
    return Step(
        0, 0, tuple(nodes), path, Bonus(end, 99, "b", 0.5), tuple(tokens), ("x",) * len(tokens), "greedy", spent, cut,
        1, len(nodes) - 1 - parents.count("P"), len(nodes),
    )  # fmt: skip


# Accepted 2, 0 and 1 of 4, 2 and 3 verified nodes, then a step cut to one of its two accepted tokens.
RUN = (made("0012", (1, 3)), made("00P", ()), made("001", (2,)), made("01", (1, 2), cut="budget", keep=1))


def test_tau_counts_the_bonus_and_leaves_cut_steps_out():
    assert metrics.tau(RUN) == pytest.approx((3 + 1 + 2) / 3)
    assert metrics.summarise(RUN, "budget", 0)["cut_steps"] == 1


def test_the_histogram_counts_what_entered_the_output():
    assert metrics.histogram(RUN) == [1, 2, 1]  # the cut step accepted two and emitted one


def test_acceptance_by_depth_is_conditional_on_reaching_it_and_on_having_a_child_to_judge():
    # Depth 1: four steps had children of the root, three accepted one. Depth 2: the first and the last had a child
    # there and accepted it; the third stood at node 2, which has none.
    assert metrics.accepted_by_depth(RUN) == [0.75, 1.0]


def test_a_pruned_child_was_never_offered():
    assert metrics.accepted_by_depth([made("PP", ())]) == []
    assert metrics.accepted_by_depth([made("0P", ())]) == [0.0]


def test_a_recording_without_its_rejected_nodes_tells_no_acceptance_by_depth():
    whole, sparse = made("01", (1, 2)), replace(made("0", (1,)), verified=4)
    assert metrics.accepted_by_depth([whole]) == [1.0, 1.0]
    assert metrics.accepted_by_depth([whole, sparse]) == []


def test_node_efficiency_is_accepted_over_verified_nodes():
    assert metrics.summarise(RUN, "budget", 0)["node_efficiency"] == pytest.approx((2 + 0 + 1 + 1) / (4 + 2 + 3 + 2))


def test_seconds_and_shares_leave_the_prefill_apart():
    found = metrics.summarise(RUN, "budget", 500 * MS)
    expected = {"draft": 0.04, "verify": 0.02, "judge": 0.008, "commit": 0.008, "host": 0.004}
    assert found["seconds"] == pytest.approx({**expected, "total": 0.08, "prefill": 0.5})
    assert found["shares"] == pytest.approx({"draft": 0.5, "verify": 0.25, "judge": 0.1, "commit": 0.1, "host": 0.05})
    assert found["tokens_per_second"] == pytest.approx(7 / 0.08)


def test_speedups_by_hand():
    plain = Baseline(token_ns=(40 * MS,) * 7, prefill_ns=0, equal=True)
    found = metrics.summarise(RUN, "budget", 0, plain)
    assert found["speedup"] == pytest.approx(7 * 40 / 80)
    assert found["predicted_speedup"] == pytest.approx(2 * 40 / 20)
    assert found["baseline_tokens_per_second"] == pytest.approx(25)
    assert found["first_divergence"] is None


def test_speedup_is_per_token_when_the_two_outputs_differ_in_length():
    plain = Baseline((40 * MS,) * 14, 0, False, Divergence(3, 0.5))
    found = metrics.summarise(RUN, "budget", 0, plain)
    assert found["speedup"] == pytest.approx(7 * 40 / 80)
    assert found["first_divergence"] == {"position": 3, "gap": 0.5}


def test_plain_decoding_has_tau_one_and_no_efficiency():
    found = sample_trace(method="autoregressive").end.metrics
    assert (found["tau"], found["accepted"], found["histogram"]) == (1.0, 0, [14])
    assert found["node_efficiency"] is None and found["accepted_by_depth"] == []


def test_a_run_without_steps_has_no_rates_and_no_error():
    found = metrics.summarise((), "cancelled", 0, Baseline((), 0, True))
    rates = ("tau", "node_efficiency", "tokens_per_second", "speedup", "predicted_speedup")
    assert all(found[name] is None for name in rates)
    assert found["histogram"] == [] and found["accepted_by_depth"] == [] and found["steps"] == 0
    assert set(found["shares"].values()) == {None}


def test_steps_that_took_no_time_give_no_rate():
    step = replace(RUN[0], time=Nanoseconds())
    found = metrics.summarise([step], "eos", 0, Baseline((40 * MS,), 0, True))
    assert found["tokens_per_second"] is None and found["speedup"] is None and found["predicted_speedup"] is None
