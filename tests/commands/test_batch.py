"""``batch``: prompts from a file become traces in a folder; what cannot be is said before any model is loaded."""

import signal
import sys
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from specviz.__main__ import main
from specviz.trace import store
from tests.support.traces.samples import sample_trace


def test_every_prompt_becomes_a_row_with_a_seed_of_its_own(tmp_path, monkeypatch, capsys):
    asked = []

    def traces(ready, every, cancel):
        asked.append(every)
        return [sample_trace(3) for _ in ready]

    def prepare(request, memory, progress):
        asked.append((request.prompt, request.seed, request.method, request.temperature, request.parameters.nodes))
        return request

    monkeypatch.setitem(sys.modules, "specviz.pipeline.batch", SimpleNamespace(traces=traces))
    monkeypatch.setitem(sys.modules, "specviz.pipeline.runner", SimpleNamespace(prepare=prepare))
    prompts, out = tmp_path / "prompts.txt", tmp_path / "made" / "here"
    prompts.write_text("One.\n\n  Two.\n", encoding="utf-8")
    chosen = "--every 3 --seed 5 --temperature 0.5 --param nodes=12".split()
    assert main(["batch", "--prompts", str(prompts), "--out", str(out), *chosen]) == 0
    assert asked == [("One.", 5, "reader", 0.5, 12), ("Two.", 6, "reader", 0.5, 12), 3]
    written = sorted(path.name for path in out.iterdir())
    assert written == ["row-1.spectrace.jsonl", "row-2.spectrace.jsonl"]
    assert len(store.read(out / written[0]).steps) == 3
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and "steps: " in said[0] and ", τ" in said[0]


def broken_off(traces, tmp_path, monkeypatch):
    """The status of a batch of two whose engine does this, and how the rows that were kept ended."""
    monkeypatch.setitem(sys.modules, "specviz.pipeline.batch", SimpleNamespace(traces=traces))
    monkeypatch.setitem(
        sys.modules, "specviz.pipeline.runner", SimpleNamespace(prepare=lambda request, memory, progress: request)
    )
    prompts, out = tmp_path / "prompts.txt", tmp_path / "made"
    prompts.write_text("One.\nTwo.\n", encoding="utf-8")
    status = main(["batch", "--prompts", str(prompts), "--out", str(out)])
    kept = [store.read(path).end for path in sorted(out.iterdir())]
    return status, [end.reason for end in kept if end is not None]


def test_an_interrupt_keeps_what_every_row_wrote(tmp_path, monkeypatch, capsys):
    def traces(ready, every, cancel):
        signal.raise_signal(signal.SIGINT)
        assert cancel.is_set()
        return [sample_trace(2, reason="cancelled", baseline=False) for _ in ready]

    before = signal.getsignal(signal.SIGINT)
    assert broken_off(traces, tmp_path, monkeypatch) == (130, ["cancelled"] * 2)
    assert "Stopped early." in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_a_batch_that_the_engine_gave_up_says_why_once_and_keeps_its_traces(tmp_path, monkeypatch, capsys):
    trace = sample_trace(3, reason="out_of_memory", baseline=False)
    trace = replace(trace, end=replace(trace.end, message="The cache needs 3 GB more; take fewer rows."))
    assert broken_off(lambda ready, every, cancel: [trace, trace], tmp_path, monkeypatch) == (2, ["out_of_memory"] * 2)
    assert capsys.readouterr().err.count("The cache needs 3 GB more; take fewer rows.\n") == 1


@pytest.mark.parametrize(("text", "said"), [("", "has 0 prompts"), ("x\n" * 9, "has 9 prompts; the file must have 1 to 8")])
def test_no_prompts_or_too_many_are_refused(text, said, tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(text, encoding="utf-8")
    assert main(["batch", "--prompts", str(prompts), "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert main(["batch", "--prompts", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    prompts.write_text("One.", encoding="utf-8")
    assert main(["batch", "--prompts", str(prompts), "--out", str(tmp_path), "--param", "colour=red"]) == 2
    assert "no parameter 'colour'" in capsys.readouterr().err
