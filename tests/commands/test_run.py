"""``run``: what goes to the output and what elsewhere, what is asked of the engine, what is kept."""

import io
import json
import sys

import pytest
from msgspec.structs import replace

from specviz.__main__ import main
from specviz.engine.tiers import TIERS
from specviz.pipeline.request import Request
from specviz.trace import store
from tests.support.fakes.commands import RUN, put_fake
from tests.support.traces.samples import sample_trace


def test_json_is_exactly_one_object_and_words_go_elsewhere(monkeypatch, capsys):
    trace = put_fake(monkeypatch).trace
    assert main([*RUN, "--json"]) == 0
    said = capsys.readouterr()
    assert said.out.count("\n") == 1
    found = json.loads(said.out)
    assert found["output_ids"] == list(trace.end.output_ids) and found["text"] == trace.end.text
    assert found["method"] == "token_recycling" and found["exactness"] == "exact" and found["reason"] == "budget"
    needed = {"tau", "steps", "emitted", "accepted_by_depth", "node_efficiency", "seconds", "tokens_per_second"}
    compared = {"speedup", "predicted_speedup", "baseline_tokens_per_second", "first_divergence"}
    assert needed | compared <= set(found["metrics"])
    assert {"draft", "verify", "judge", "commit", "host", "total"} <= set(found["metrics"]["seconds"])
    assert "Loading a model" in said.err and "warning: This run is a sample made for tests." in said.err


def test_live_output_is_the_text_and_then_the_numbers(monkeypatch, capsys):
    trace = put_fake(monkeypatch).trace
    assert main(list(RUN)) == 0
    said = capsys.readouterr()
    assert said.out.startswith(trace.end.text + "\n\n")
    numbers = said.out[len(trace.end.text) :]
    assert f"{trace.end.metrics['tau']:.2f} tokens per pass" in numbers
    assert f"{trace.end.metrics['speedup']:.2f}× measured" in numbers
    assert "the same text, token for token" in numbers
    assert "one token at a time" in numbers, "why it was faster, or not"
    assert "\x1b" not in said.out, "no colours outside a terminal"


def test_text_streams_as_it_is_accepted(monkeypatch, capsys):
    seen = []

    def events(trace, cancel):
        yield trace.run
        for step in trace.steps:
            yield step
            seen.append(capsys.readouterr().out)
        yield trace.end

    trace = put_fake(monkeypatch, events=events).trace
    assert main(list(RUN)) == 0
    assert seen == ["".join(step.pieces) for step in trace.steps]


def test_token_text_cannot_drive_the_terminal(monkeypatch, capsys):
    trace = sample_trace(2)
    spoilt = tuple(replace(step, pieces=("\x1b]0;owned\x07",) * len(step.pieces)) for step in trace.steps)
    put_fake(monkeypatch, replace(trace, steps=spoilt))
    assert main(list(RUN)) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_every_flag_reaches_the_request(monkeypatch):
    made = put_fake(monkeypatch)
    flags = (
        "--target T --draft D --raw --max-new-tokens 7 --temperature 0.5 --top-p 0.9 --top-k 40 --seed 3 "
        "--dtype float64 --device cpu --tier eager --param tree=published --param keep=false --baseline --json"
    )
    assert main([*RUN, *flags.split()]) == 0
    assert made.asked == Request(
        method="token_recycling", prompt="hello", target="T", draft="D", raw=True, max_new_tokens=7, temperature=0.5,
        top_p=0.9, top_k=40, seed=3, dtype="float64", device="cpu", tier="eager", baseline=True,
        parameters={"tree": "published", "keep": "false"},
    )  # fmt: skip


def test_the_prompt_may_come_from_a_file_or_the_input(tmp_path, monkeypatch):
    made, file = put_fake(monkeypatch), tmp_path / "prompt.txt"
    file.write_text("naïve\n", encoding="utf-8")
    assert main(["run", "--method", "stand", "--prompt-file", str(file), "--json"]) == 0
    assert made.asked.prompt == "naïve\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from the input")))
    assert main(["run", "--method", "stand", "--prompt-file", "-", "--json"]) == 0
    assert made.asked.prompt == "from the input"


def test_the_last_end_wins(monkeypatch, capsys, tmp_path):
    def events(trace, cancel):
        yield from (trace.run, *trace.steps, replace(trace.end, baseline=None, metrics={}), trace.end)

    put_fake(monkeypatch, events=events)
    out = tmp_path / "run.spectrace.jsonl"
    assert main([*RUN, "--json", "--out", str(out)]) == 0
    assert "speedup" in json.loads(capsys.readouterr().out)["metrics"]
    assert store.read(out).end.baseline is not None


@pytest.mark.parametrize("tier", TIERS)
def test_every_tier_of_the_engine_can_be_chosen(monkeypatch, tier):
    fake = put_fake(monkeypatch)
    assert main([*RUN, "--tier", tier]) == 0
    assert fake.asked.tier == tier
