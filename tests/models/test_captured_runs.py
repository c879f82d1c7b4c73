"""Captured passes as a user meets them: the first run of a model says what capturing took, and the next ones capture nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import specviz
from specviz.trace import store
from tests.support.fakes.graphs import SECONDS, Graphs


@pytest.mark.slow
def test_the_first_run_says_what_capturing_took_and_later_ones_replay(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = Graphs(monkeypatch)
    asked = {"prompt": "the quick brown fox", "target": str(tiny_folder), "max_new_tokens": 24, "dtype": "float64"}
    first, second, other = (
        specviz.run(method=name, tier="graph", device="cpu", baseline=True, **asked)
        for name in ("prompt_lookup", "prompt_lookup", "token_recycling")
    )
    for trace in (first, second, other):
        assert trace.end is not None and trace.end.baseline is not None and trace.end.baseline.equal
        assert trace.end.metrics["seconds"]["total"] < SECONDS > trace.end.metrics["seconds"]["prefill"]
        assert max(trace.end.baseline.token_ns) < SECONDS * 1e9 > trace.end.baseline.prefill_ns
    assert first.end and first.end.baseline and second.end and second.end.baseline and other.end and other.end.baseline
    assert first.end.captures > 0
    assert SECONDS * 1e9 <= first.end.capture_ns < graphs.captures * (SECONDS + 1) * 1e9
    assert first.end.metrics["seconds"]["capture"] == first.end.capture_ns / 1e9
    assert (second.end.captures, second.end.capture_ns, second.end.baseline.capture_ns) == (0, 0, 0)
    assert "capture" not in second.end.metrics["seconds"]
    assert other.end.baseline.capture_ns == 0, "a baseline is the same pass whatever it is compared with"
    kept = store.read(store.text(first).encode()).end
    assert kept is not None and (kept.captures, kept.capture_ns) == (first.end.captures, first.end.capture_ns)
