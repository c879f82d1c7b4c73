"""The command line as its users meet it: what goes where, how it fails, and what is kept when a run breaks off."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specviz.__main__ import main
from specviz.errors import ModelUnavailable
from specviz.request import Request
from specviz.trace import store
from specviz.trace.schema import End, Run, Step, Trace
from tests.samples import dump, sample_trace

ROOT = Path(__file__).resolve().parents[1]
RUN = ("run", "--method", "token_recycling", "--prompt", "hello")
Event = Run | Step | End


class FakeRun:
    """Stands in for ``specviz.run``: remembers what it was asked and yields what ``events`` makes of a recorded run."""

    def __init__(self, trace: Trace, events: Callable[[Trace, Any], Iterator[Event]] | None = None) -> None:
        self.trace = trace
        self.asked: Request | None = None
        self._events = events or (lambda one, cancel: iter([one.run, *one.steps, one.end]))

    def stream(
        self, request: Request, *, cancel: Any, progress: Callable[[str, float | None], None]
    ) -> Iterator[Event]:
        self.asked = request
        progress("Loading a model", None)
        progress("Loading a model", 0.5)
        yield from self._events(self.trace, cancel)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeRun]:
    """Puts a fake engine in the real one's place."""

    def put(trace: Trace | None = None, events: Callable[[Trace, Any], Iterator[Event]] | None = None) -> FakeRun:
        made = FakeRun(trace or sample_trace(6), events)
        monkeypatch.setitem(sys.modules, "specviz.run", made)
        return made

    return put


def python(*given: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "specviz", *given], cwd=ROOT, capture_output=True, text=True, **more)


def one_sentence(error: str) -> bool:
    return error.endswith((".\n", "help.\n")) and error.count("\n") == 1 and "Traceback" not in error


# What is listed


def test_methods_are_listed_as_json_without_torch() -> None:
    asked = (
        "import sys; from specviz.__main__ import main; main(['methods', '--json']); "
        "print({'torch', 'transformers', 'gradio'} & set(sys.modules), file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stderr.strip() == "set()"
    listed = {one["name"]: one for one in json.loads(answer.stdout)}
    assert {"autoregressive", "speculative_sampling", "prompt_lookup", "token_recycling", "stand"} <= set(listed)
    for one in listed.values():
        assert {"title", "modality", "exactness", "token_exact", "parameters", "weights", "paper"} <= set(one)
        assert one["exactness"] in ("exact", "relaxed") and isinstance(one["token_exact"], bool)
        for weights in one["weights"]:
            assert weights["present"] in (True, False)
    copied = next(one for one in listed["prompt_lookup"]["parameters"] if one["name"] == "copied")
    assert copied == {
        "name": "copied", "kind": "int", "default": 10, "low": 1, "high": 64, "unit": "tokens", "choices": [],
        "step": None, "help": copied["help"],
    }  # fmt: skip
    assert listed["token_recycling"]["paper"]["arxiv"] == "2408.08696"


def test_methods_are_listed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    assert "prompt_lookup: Prompt lookup." in shown
    assert "1 to 64 tokens, normally 10." in shown
    assert "arXiv 2408.08696" in shown


# A run


def test_json_is_exactly_one_object_and_words_go_elsewhere(
    fake: Callable[..., FakeRun], capsys: pytest.CaptureFixture[str]
) -> None:
    trace = fake().trace
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


def test_live_output_is_the_text_and_then_the_numbers(
    fake: Callable[..., FakeRun], capsys: pytest.CaptureFixture[str]
) -> None:
    trace = fake().trace
    assert main(list(RUN)) == 0
    said = capsys.readouterr()
    assert said.out.startswith(trace.end.text + "\n\n")
    numbers = said.out[len(trace.end.text) :]
    assert f"{trace.end.metrics['tau']:.2f} tokens a pass" in numbers
    assert f"{trace.end.metrics['speedup']:.2f}× measured" in numbers
    assert "the same text, token for token" in numbers
    assert "one token at a time" in numbers, "why it was faster, or not"
    assert "\x1b" not in said.out, "no colours outside a terminal"


def test_text_streams_as_it_is_accepted(fake: Callable[..., FakeRun], capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def events(trace: Trace, cancel: Any) -> Iterator[Event]:
        yield trace.run
        for step in trace.steps:
            yield step
            seen.append(capsys.readouterr().out)
        yield trace.end

    trace = fake(events=events).trace
    assert main(list(RUN)) == 0
    assert seen == ["".join(step.pieces) for step in trace.steps]


def test_a_silent_drafter_is_loud_in_the_terminal(
    fake: Callable[..., FakeRun], capsys: pytest.CaptureFixture[str]
) -> None:
    trace = sample_trace(4, method="autoregressive")
    fake(replace(trace, run=replace(trace.run, method="prompt_lookup")))
    assert main(list(RUN)) == 0
    assert "The drafter proposed nothing in all of 4 steps" in capsys.readouterr().out


def test_token_text_cannot_drive_the_terminal(fake: Callable[..., FakeRun], capsys: pytest.CaptureFixture[str]) -> None:
    trace = sample_trace(2)
    spoilt = tuple(replace(step, pieces=("\x1b]0;owned\x07",) * len(step.pieces)) for step in trace.steps)
    fake(replace(trace, steps=spoilt))
    assert main(list(RUN)) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_every_flag_reaches_the_request(fake: Callable[..., FakeRun]) -> None:
    made = fake()
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


def test_the_prompt_may_come_from_a_file_or_the_input(
    fake: Callable[..., FakeRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, file = fake(), tmp_path / "prompt.txt"
    file.write_text("naïve\n", encoding="utf-8")
    assert main(["run", "--method", "stand", "--prompt-file", str(file), "--json"]) == 0
    assert made.asked is not None and made.asked.prompt == "naïve\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("from the input"))
    assert main(["run", "--method", "stand", "--prompt-file", "-", "--json"]) == 0
    assert made.asked.prompt == "from the input"


def test_the_trace_is_kept_and_valid(fake: Callable[..., FakeRun], tmp_path: Path) -> None:
    made, out = fake(), tmp_path / "run.spectrace.jsonl"
    assert main([*RUN, "--json", "--out", str(out)]) == 0
    assert len(store.read(out).steps) == len(made.trace.steps)


def test_the_last_end_wins(fake: Callable[..., FakeRun], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def events(trace: Trace, cancel: Any) -> Iterator[Event]:
        yield from (trace.run, *trace.steps, replace(trace.end, baseline=None, metrics={}), trace.end)

    fake(events=events)
    out = tmp_path / "run.spectrace.jsonl"
    assert main([*RUN, "--json", "--out", str(out)]) == 0
    assert "speedup" in json.loads(capsys.readouterr().out)["metrics"]
    assert store.read(out).end.baseline is not None


# What the user can mend: status 2 and one sentence


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "COMMAND"),
        (("dance",), "invalid choice: 'dance'"),
        (("run", "--method", "stand"), "--prompt --prompt-file is required"),
        ((*RUN, "--prompt-file", "x"), "not allowed with"),
        ((*RUN, "--seed", "x"), "invalid int value: 'x'"),
        ((*RUN, "--dtype", "int3"), "invalid choice: 'int3'"),
        ((*RUN, "--param", "nodes"), "--param nodes is not of the form name=value"),
        ((*RUN, "--param", "a=1", "--param", "a=2"), "--param a is given twice"),
        ((*RUN, "--out", "no/such/folder/x.jsonl"), "not a folder that can be written to"),
        ((*RUN, "--param", "nodes=1"), "token_recycling has no parameter 'nodes'; it has: tree, keep."),
        ((*RUN, "--max-new-tokens", "0"), "max_new_tokens is 0"),
        (("run", "--method", "stand", "--prompt", " "), "The prompt is empty"),
        (("run", "--method", "stand", "--prompt-file", "no.txt"), "The prompt file no.txt cannot be read"),
        (("validate", "no.jsonl"), "cannot be read"),
        (("export", "no.jsonl", "--to", "html", "--out", "x"), "cannot be read"),
        (("export", "x", "--to", "pdf", "--out", "x"), "invalid choice: 'pdf'"),
        (("fetch", "no such model"), "There is no model 'no such model'"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(
    given: tuple[str, ...], words: str, fake: Callable[..., FakeRun], capsys: pytest.CaptureFixture[str]
) -> None:
    made = fake()
    assert main(list(given)) == 2
    said = capsys.readouterr()
    assert words in said.err and one_sentence(said.err), said.err
    assert said.out == "" and made.asked is None, "nothing was started"


def test_an_unknown_method_lists_the_known_ones() -> None:
    answer = python("run", "--method", "telepathy", "--prompt", "x")
    assert answer.returncode == 2 and answer.stdout == ""
    assert "There is no method 'telepathy'; there are: autoregressive," in answer.stderr and one_sentence(answer.stderr)


def test_a_prompt_file_that_is_not_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.bin").write_bytes(b"\xff\xfe\x00")
    assert main(["run", "--method", "stand", "--prompt-file", str(tmp_path / "x.bin")]) == 2
    assert "is not UTF-8 text" in capsys.readouterr().err


# What breaks off: the partial trace is kept


def breaking(problem: BaseException) -> Callable[[Trace, Any], Iterator[Event]]:
    def events(trace: Trace, cancel: Any) -> Iterator[Event]:
        yield from (trace.run, *trace.steps[:3])
        raise problem

    return events


@pytest.mark.parametrize(
    ("problem", "status", "reason"),
    [
        (KeyboardInterrupt(), 130, "cancelled"),
        (ModelUnavailable("The target went away; try again."), 2, "error"),
        (ZeroDivisionError("by zero"), 1, "error"),
    ],
)
def test_what_was_decoded_is_kept_however_it_breaks_off(
    problem: BaseException, status: int, reason: str, fake: Callable[..., FakeRun], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "run.spectrace.jsonl"
    trace = fake(events=breaking(problem)).trace
    assert main([*RUN, "--out", str(out)]) == status
    kept = store.read(out)
    assert len(kept.steps) == 3 and kept.end.reason == reason
    assert kept.end.text == "".join(piece for step in trace.steps[:3] for piece in step.pieces)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("reason", "status"), [("error", 1), ("out_of_memory", 2)])
def test_a_run_that_the_engine_gave_up_says_why_and_keeps_its_trace(
    reason: str, status: int, fake: Callable[..., FakeRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.spectrace.jsonl"
    trace = sample_trace(4, reason=reason, baseline=False)
    fake(replace(trace, end=replace(trace.end, message="The cache needs 3 GB more; take a smaller model.")))
    assert main([*RUN, "--json", "--out", str(out)]) == status
    said = capsys.readouterr()
    assert said.err.endswith("The cache needs 3 GB more; take a smaller model.\n")
    assert json.loads(said.out)["reason"] == reason
    assert len(store.read(out).steps) == 4


def test_an_interrupt_lets_the_step_finish_and_keeps_the_trace(
    fake: Callable[..., FakeRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def events(trace: Trace, cancel: Any) -> Iterator[Event]:
        yield trace.run
        for count, step in enumerate(trace.steps[:3]):
            if count == 2:
                signal.raise_signal(signal.SIGINT)
            yield step
            if cancel.is_set():
                break
        yield replace(sample_trace(3, reason="cancelled", baseline=False).end, reason="cancelled")

    before = signal.getsignal(signal.SIGINT)
    out = tmp_path / "run.spectrace.jsonl"
    fake(sample_trace(3, reason="cancelled", baseline=False), events)
    assert main([*RUN, "--out", str(out)]) == 130
    assert len(store.read(out).steps) == 3
    assert "Stopped" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_while_the_model_loads_stops_at_once(
    fake: Callable[..., FakeRun], capsys: pytest.CaptureFixture[str]
) -> None:
    def events(trace: Trace, cancel: Any) -> Iterator[Event]:
        signal.raise_signal(signal.SIGINT)
        yield trace.run

    fake(events=events)
    assert main(list(RUN)) == 130
    assert capsys.readouterr().err.endswith("Stopped.\n")


# What is our fault: status 1, the error's type, and how to report it


def test_a_fault_of_ours_names_its_type_and_asks_for_a_report(
    fake: Callable[..., FakeRun], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(events=breaking(ZeroDivisionError("float division by zero\nand more")))
    assert main([*RUN, "--json"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "ZeroDivisionError: float division by zero and more" in error and "please report" in error
    monkeypatch.setenv("SPECVIZ_DEBUG", "1")
    assert main([*RUN, "--json"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_broken_pipe_is_quiet() -> None:
    started = [sys.executable, "-m", "specviz", "methods"]
    with subprocess.Popen(started, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


# The other commands


def test_validate_praises_the_good_and_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = dump(tmp_path / "good.spectrace.jsonl")
    assert main(["validate", str(good)]) == 0
    assert "is a valid trace: Token recycling, 14 steps, ended by budget." in capsys.readouterr().out
    bad = tmp_path / "bad.spectrace.jsonl"
    text = good.read_text("utf-8").split("\n")
    bad.write_text(
        "\n".join([text[0], text[1].replace('"rule":"greedy"', '"rule":"wish"'), *text[2:]]), encoding="utf-8"
    )
    assert main(["validate", str(bad)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("line 2, ") and "rule" in error and one_sentence(error)


@pytest.mark.parametrize("kind", ["perfetto", "graphml", "nodelink", "summary", "html"])
def test_export_writes_the_file_that_was_asked_for(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = dump(tmp_path / "run.spectrace.jsonl"), tmp_path / "made"
    step = ["--step", "2"] if kind in ("graphml", "nodelink") else []
    assert main(["export", str(trace), "--to", kind, "--out", str(out), *step]) == 0
    content = out.read_text("utf-8")
    assert content.startswith("<") if kind in ("graphml", "html") else isinstance(json.loads(content), dict)
    assert str(out) in capsys.readouterr().err


def test_export_of_a_tree_asks_which_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = dump(tmp_path / "run.spectrace.jsonl")
    for step, words in ((), "choose it with --step"), (("--step", "99"), "There is no step 99"):
        assert main(["export", str(trace), "--to", "graphml", "--out", str(tmp_path / "x"), *step]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_fetch_prints_the_folder_and_tells_progress_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(name: str, progress: Callable[[str, float | None], None]) -> Path:
        for done in (0.1, 0.5, 0.9):
            progress(f"Fetching {name}", done)
        return Path("somewhere") / name

    monkeypatch.setitem(sys.modules, "specviz.models.prepare", SimpleNamespace(prepare=prepare))
    assert main(["fetch", "a-model"]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(Path("somewhere/a-model"))
    assert said.err == "Fetching a-model\n", "one line a message outside a terminal"


@pytest.mark.parametrize("as_json", [False, True])
def test_bench_hands_over_its_choices(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def run_suite(name: str, methods: tuple[str, ...], target: str, report: Callable[[str], None]) -> SimpleNamespace:
        asked.extend([name, tuple(methods), target])
        report("a row")
        return SimpleNamespace(as_json=lambda: '{"rows": []}', as_table=lambda: "| a table |")

    monkeypatch.setitem(sys.modules, "specviz.bench.runner", SimpleNamespace(run_suite=run_suite))
    given = ["bench", "--suite", "quick", "--methods", "stand, prompt_lookup", "--target", "T"]
    assert main([*given, "--json"] if as_json else given) == 0
    assert asked == ["quick", ("stand", "prompt_lookup"), "T"]
    said = capsys.readouterr()
    assert said.out == ('{"rows": []}\n' if as_json else "| a table |\n") and said.err == "a row\n"


def test_calibrate_and_train_hand_over_their_choices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import specviz.bench

    asked: list[Any] = []
    calibrate = SimpleNamespace(run=lambda name, target, report: asked.append((name, target)) or "trees/stand.json")
    monkeypatch.setattr(specviz.bench, "calibrate", calibrate, raising=False)
    monkeypatch.setitem(sys.modules, "specviz.bench.calibrate", calibrate)
    assert main(["calibrate", "stand", "--target", "T"]) == 0
    assert capsys.readouterr().out == "trees/stand.json\n"
    training = SimpleNamespace(train=lambda name, **more: asked.append((name, more)))
    monkeypatch.setitem(sys.modules, "specviz.training", training)
    assert main(["train", "small_draft", "--device", "cpu", "--minutes", "1.5", "--resume"]) == 0
    assert asked == [("stand", "T"), ("small_draft", {"device": "cpu", "minutes": 1.5, "resume": True})]


@pytest.mark.model
def test_the_real_model_writes_the_same_text_twice(tmp_path: Path) -> None:
    given = ("--prompt", "Count from one to five: one, two,", "--max-new-tokens", "12", "--raw", "--json")
    answers = [python("run", "--method", name, *given) for name in ("autoregressive", "prompt_lookup")]
    assert [answer.returncode for answer in answers] == [0, 0], answers[0].stderr + answers[1].stderr
    first, second = (json.loads(answer.stdout) for answer in answers)
    assert len(first["output_ids"]) == 12 and first["output_ids"] == second["output_ids"]
