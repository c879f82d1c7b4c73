"""The small HTML pieces say what the run's numbers say, and nothing in them can run."""

from __future__ import annotations

import html

import pytest

from specviz.methods.registry import Method, all_methods, describe
from specviz.ui.widgets import panels
from tests.support.traces.samples import sample_trace


def test_the_headline_is_the_measured_speed_up() -> None:
    trace = sample_trace(20)
    made = panels.why(trace)
    assert f"<b>{trace.end.metrics['speedup']:.2f}×</b>" in made and "predicted speed-up" in made
    assert "Why faster" in made


def test_without_a_one_by_one_run_the_speed_up_is_unknown() -> None:
    trace = sample_trace(20, baseline=False)
    assert "was not timed" in panels.why(trace)
    assert "timing the autoregressive run" in panels.why(trace, timing=True)


def test_while_a_run_goes_on_nothing_is_claimed() -> None:
    assert panels.why(sample_trace(20, ended=False)) == panels.why(None)
    assert "×" not in panels.why(None)


def test_messages_are_text() -> None:
    made = str(panels.banner("<img src=x onerror=alert(1)>").value)
    assert "<img" not in made and 'role="alert"' in made
    assert not panels.banner("").visible
    assert 'role="status"' in str(panels.banner("Stopped.", note=True).value)


def test_every_method_has_a_card_with_its_exactness() -> None:
    made = panels.cards({})
    for method in all_methods().values():
        assert method.title in made and str(method.exactness) in made
        assert str(method.exactness) in panels.summary(method.name)


@pytest.mark.parametrize("method", [one for one in all_methods().values() if one.exactness.token_exact], ids=lambda one: one.name)
def test_a_rule_that_keeps_only_the_distribution_is_named_beside_token_for_token(method: Method) -> None:
    known = {one.name: one.bounds.choices for one in describe(method.parameters)}
    exception = method.exactness.exception
    assert (exception is not None) == ("rule" in known or method.name == "falcon")
    if exception is not None:
        name, choice = exception
        assert choice in known[name] and method.parameters().__dict__[name] != choice
        assert str(method.exactness) == f"exact, token for token; in distribution with {name} “{choice}”"
        assert panels.MEANING["exact in distribution"] in html.unescape(panels.summary(method.name))
        assert f"With {name} “{choice}”" in panels.cards({})


@pytest.mark.parametrize("name", ["eagle", "medusa", "stand"])
def test_a_rule_that_is_token_exact_is_named_where_the_usual_one_is_not(name: str) -> None:
    method = all_methods()[name]
    assert method.exactness.exception is not None and not method.exactness.token_exact
    parameter, choice = method.exactness.exception
    known = {one.name: one.bounds.choices for one in describe(method.parameters)}
    assert choice in known[parameter] and method.parameters().__dict__[parameter] != choice
    assert str(method.exactness).endswith(f"; token for token with {parameter} “{choice}”")
    assert f"With {parameter} “{choice}”: {panels.MEANING['exact, token for token']}" in html.unescape(panels.summary(name))


def test_what_a_tree_on_states_needs_is_not_the_draft_model_of_another_target() -> None:
    assert "hybrid-small and its Mamba-2 drafter" in panels.needs(all_methods()["stree"])
    assert "SmolLM2" in panels.needs(all_methods()["speculative_sampling"])


def test_what_to_watch_is_the_recording_s_own_note_where_it_has_one() -> None:
    assert all_methods()["stand"].look_at in panels.summary("stand")
    assert "&lt;b&gt;" in panels.summary("stand", "<b>") and all_methods()["stand"].look_at not in panels.summary("stand", "<b>")


def test_a_card_tells_the_claim_from_what_was_seen_here() -> None:
    recorded = sample_trace(20, method="stand")
    made = panels.cards({"stand": panels.measured(recorded.run, recorded.end, "<a run>")})
    assert all_methods()["stand"].claim in made and "Claimed" in made
    assert f"τ {recorded.end.metrics['tau']:.2f}" in made
    assert 'href="?trace=&lt;a run&gt;"' in made
