"""Why faster, or why not: the right term is blamed in plain words, and a silent drafter is never passed over."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from specviz import figures
from specviz.figures.explain import bottleneck, explain
from specviz.trace import metrics, store
from specviz.trace.schema import Nanoseconds
from specviz.ui.widgets.panels import speed_explanation
from tests.support.traces.made import MS, SILENT, TREE, trace

TRACES = Path(__file__).resolve().parents[2] / "assets" / "traces"


def timed(step=TREE, **milliseconds):
    return replace(step, time=Nanoseconds(**{name: spent * MS for name, spent in milliseconds.items()}))


def terms(one):
    return {term.name: term for term in explain(one)}


def test_slow_drafting_is_named_with_its_share_and_what_it_costs():
    found = trace(timed(draft=41, verify=50, judge=3, commit=3, host=3), plain_ms=40)
    verdict = terms(found)["verdict"]
    assert verdict.sentence == (
        "1.20× as fast as one token at a time. Beyond the one target pass that a step needs, drafting costs most: "
        "41 % of each step. "
        "If it were free, the speed-up would be 2.03×."
    )
    assert not verdict.loud
    assert bottleneck(found) == "draft"
    assert terms(found)["draft"].without == pytest.approx(3 * 40 / 59)


def test_a_target_pass_that_costs_what_it_always_costs_is_not_a_loss():
    found = trace(timed(draft=0, verify=40), plain_ms=40)
    assert bottleneck(found) is None
    assert terms(found)["verdict"].sentence.startswith("3.00× as fast as one token at a time. No cost stands out")


def test_low_acceptance_is_the_limit_however_cheap_the_rest():
    lost = timed(replace(TREE, path=(), emitted=(8,), pieces=(" blue",)), draft=1, verify=50)
    found = trace(lost, lost)
    assert bottleneck(found) == "tau"
    verdict = terms(found)["verdict"]
    assert "Acceptance is the limit: a pass gives only 1.00 tokens" in verdict.sentence
    assert verdict.loud, "slower than one by one must be seen"


def test_every_term_of_the_identity_is_there_and_multiplies_out():
    found = terms(trace(timed(draft=10, verify=50, judge=2, commit=2, host=1), plain_ms=40))
    costs = sum(found[name].value for name in ("draft", "verify", "judge", "commit", "host"))
    assert found["predicted"].value == pytest.approx(found["tau"].value * found["plain"].value / costs)
    assert found["measured"].value == pytest.approx(found["predicted"].value)
    assert "as predicted" in found["measured"].sentence
    assert found["predicted"].sentence == "3.00 × 40.0 ms ÷ 65.0 ms = 1.85×."


def test_a_drafter_that_never_spoke_is_the_headline():
    found = trace(SILENT, SILENT, SILENT)
    verdict = explain(found)[0]
    assert verdict.loud
    assert verdict.sentence.startswith("The drafter proposed nothing in any of 3 steps")
    assert "The drafter proposed nothing" in figures.speed_explained(found).layout.title.subtitle.text
    assert 'role="alert"' in figures.speed_table(found)


def test_a_drafter_that_was_often_silent_is_said_before_the_verdict():
    found = trace(TREE, SILENT, TREE)
    assert terms(found)["silence"].loud
    assert terms(found)["silence"].sentence.startswith("The drafter proposed nothing in 1 of 3 steps")
    assert figures.speed_explained(found).layout.title.subtitle.text.startswith("The drafter proposed nothing in 1 of 3")
    assert not terms(trace(TREE, SILENT, *[TREE] * 6))["silence"].loud


def test_without_a_baseline_it_says_what_is_missing_and_still_blames_the_costs():
    found = terms(trace(timed(draft=50, verify=50), plain_ms=None))
    assert found["verdict"].value is None
    assert "without an autoregressive baseline" in found["verdict"].sentence
    assert "drafting costs most: 50 % of each step." in found["verdict"].sentence
    assert found["measured"].value is None and "predicted" not in found


def test_where_a_step_takes_several_passes_its_costs_are_shared_among_them():
    """MuLo-SD's waves: the prediction is that of the metrics, and says that costs are those of a pass."""
    one = store.read(TRACES / "mulo_sd.spectrace.jsonl.gz")
    assert any(step.passes > 1 for step in one.steps)
    found, stated = terms(one), metrics.summarise(one.steps, "budget", 0, one.end.baseline)
    assert found["predicted"].value == pytest.approx(stated["predicted_speedup"])
    assert found["predicted"].value == pytest.approx(found["measured"].value, rel=0.05)
    made = [figures.speed_explained(one).data[0].y[0], speed_explanation(one)]
    assert all("a step ÷ its passes" in said for said in made)


def test_drafts_whose_rejected_tokens_were_not_recorded_are_no_silence():
    """In a server's reply, and in a recording of accepted paths alone, a step may have drafted and carry no node."""
    served, rejected = store.read(TRACES / "llama_cpp_ngram.spectrace.jsonl.gz"), replace(SILENT, verified=5)
    assert terms(served)["silence"].sentence.startswith("The drafter proposed nothing in 1 of 10 steps")
    assert "silence" not in terms(trace(TREE, rejected))
    assert terms(trace(rejected))["verdict"].sentence.startswith("0.62× the speed of one token at a time")


def test_a_client_s_times_blame_no_phase():
    """A client times whole steps, which stand under "host"."""
    found = trace(timed(host=65), plain_ms=40)
    assert list(terms(found)) == ["verdict", "tau", "plain", "predicted", "measured"] and bottleneck(found) is None
    assert terms(found)["verdict"].sentence == "1.85× as fast as one token at a time."
    assert figures.speed_explained(found).layout.title.text.endswith("1.85× measured · 1.85× predicted")
    assert "largest overhead" not in figures.speed_table(found) and "draft +" not in speed_explanation(found)
