"""The small HTML pieces say what the run's numbers say, and nothing in them can run."""

from specviz.methods.registry import all_methods
from specviz.ui.widgets import panels
from tests.support.traces.samples import sample_trace


def test_the_headline_is_the_measured_speed_up():
    trace = sample_trace(20)
    made = panels.speed_explanation(trace)
    assert f"<b>{trace.end.metrics['speedup']:.2f}×</b>" in made and "predicted speed-up" in made
    assert "Why faster" in made


def test_without_a_one_by_one_run_the_speed_up_is_unknown():
    trace = sample_trace(20, baseline=False)
    assert "was not timed" in panels.speed_explanation(trace)
    assert "timing the autoregressive run" in panels.speed_explanation(trace, timing=True)


def test_while_a_run_goes_on_nothing_is_claimed():
    assert panels.speed_explanation(sample_trace(20, ended=False)) == panels.speed_explanation(None)
    assert "×" not in panels.speed_explanation(None)


def test_messages_are_text():
    made = str(panels.banner("<img src=x onerror=alert(1)>").value)
    assert "<img" not in made and 'role="alert"' in made
    assert not panels.banner("").visible
    assert 'role="status"' in str(panels.banner("Stopped.", note=True).value)


def test_every_method_has_a_card_with_its_exactness():
    made = panels.cards({})
    for method in all_methods().values():
        assert method.title in made and str(method.exactness) in made
        assert str(method.exactness) in panels.summary(method.name)


def test_what_to_watch_is_the_recording_s_own_note_where_it_has_one():
    assert all_methods()["stand"].look_at in panels.summary("stand")
    assert "&lt;b&gt;" in panels.summary("stand", "<b>") and all_methods()["stand"].look_at not in panels.summary("stand", "<b>")


def test_a_card_tells_the_claim_from_what_was_seen_here():
    recorded = sample_trace(20, method="stand")
    made = panels.cards({"stand": panels.measured(recorded.run, recorded.end, "<a run>")})
    assert all_methods()["stand"].claim in made and "Claimed" in made
    assert f"τ {recorded.end.metrics['tau']:.2f}" in made
    assert 'href="?trace=&lt;a run&gt;"' in made
