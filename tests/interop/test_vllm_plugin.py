"""The vLLM plugin on a stand-in for vLLM's model runner: same methods, same tensors, no server."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specviz.interop.chain import NumberedTokens
from specviz.interop.vllm_plugin import plugin, request_recorder
from specviz.trace import store
from specviz.trace.schema import ACCEPTED, REJECTED, SKIPPED, Trace

VOCAB, END = 16, 15
ASKED = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "max_tokens": 9, "min_tokens": 0, "ends": [END]}
RUN = {
    "target": "tiny", "method": "vllm_autoregressive", "title": "Autoregressive in vLLM", "draft": "", "parameters": {},
    "device": "cpu", "dtype": "bfloat16", "tier": "eager", "libraries": {"vllm": "0.0", "torch": "0.0"},
}  # fmt: skip
SERVER = {"run": RUN, "tokenizer": None, "max_model_len": 64}


class Runner:
    """What vLLM's model runner is to the plugin. ``script`` [round][request]: (drafted, sampled)."""

    script: list[list[tuple[list[int], list[int]]]] = []
    names = ["a", "b"]
    temperature = 0.0

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        lookup = {"prompt_lookup_min": 1, "prompt_lookup_max": 3}
        speculative = SimpleNamespace(method="ngram", num_speculative_tokens=3, model=None, **lookup)
        model = {"model": "/models/tiny", "dtype": "torch.bfloat16", "max_model_len": 64, "tokenizer_revision": None}
        names = ("tokenizer", "runner_type", "tokenizer_mode", "trust_remote_code")
        model |= dict.fromkeys(names, "auto")
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(enforce_eager=True, skip_tokenizer_init=True, **model),
            speculative_config=speculative,
            parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
            device_config=SimpleNamespace(device_type="cpu"),
        )  # fmt: skip
        params = SimpleNamespace(
            temperature=self.temperature, top_p=1.0, top_k=0, min_p=0.0, seed=None, max_tokens=7, min_tokens=0, ignore_eos=False,
            stop_token_ids=[], all_stop_token_ids={END},
        )  # fmt: skip
        self.requests = {name: SimpleNamespace(prompt_token_ids=[1, 2, 3], sampling_params=params) for name in self.names}
        self.input_batch = SimpleNamespace(req_ids=list(self.names))
        self.discard_request_mask = SimpleNamespace(np=np.zeros(8, dtype=bool))
        self.round = 0
        self.logits: list[torch.Tensor] = []

    def initialize_kv_cache(self) -> None:
        """vLLM's: the model is there, and room for its keys and values."""

    def execute_model(self, scheduler_output: Any) -> None:
        """vLLM's: the target's pass."""

    def _sample(self, logits: torch.Tensor, metadata: Any) -> Any:
        self._get_spec_decode_draft_probs(metadata)
        rows = self.script[self.round]
        wide = max(len(sampled) for _, sampled in rows)
        return SimpleNamespace(sampled_token_ids=torch.tensor([[*said, *([-1] * (wide - len(said)))] for _, said in rows]))

    def _get_spec_decode_draft_probs(self, metadata: Any) -> None:
        return None

    def propose_draft_token_ids(self) -> None:
        """vLLM's: the drafter's turn."""

    def sample_tokens(self, grammar: Any = None) -> None:
        rows = self.script[self.round]
        counts = [len(drafted) for drafted, _ in rows]
        drafted = torch.tensor([token for drafted, _ in rows for token in drafted], dtype=torch.int32)
        torch.manual_seed(self.round)
        self.logits.append(torch.randn(sum(counts) + len(counts), VOCAB))
        metadata = SimpleNamespace(draft_token_ids=drafted, num_draft_tokens=counts) if any(counts) else None
        self._sample(self.logits[-1].clone(), metadata)
        self.propose_draft_token_ids()
        self.round += 1


class Logger:
    """What vLLM's Prometheus logger is to the plugin; ``lines`` are the labels of gauges that were set."""

    lines: list[dict[str, str]] = []

    def __init__(self, config: Any) -> None:
        self.vllm_config = config

    def _gauge_cls(self, name: str, labelnames: list[str], **more: Any) -> Any:
        def labels(**told: str) -> Any:
            assert list(told) == labelnames and name == "specviz:speculative_config_info"
            return SimpleNamespace(set=lambda value: self.lines.append(told))

        return SimpleNamespace(labels=labels)

    def log_engine_initialized(self) -> None:
        """vLLM's: the engine is up."""


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of vLLM's name with what the plugin asks of them."""
    group = SimpleNamespace(is_last_rank=True, is_first_rank=True)
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": "0.0"},
        "vllm.distributed.parallel_state": {"get_pp_group": lambda: group, "get_tp_group": lambda: group},
        "vllm.v1.worker.gpu_model_runner": {},
        "vllm.v1.metrics.loggers": {"PrometheusStatLogger": type("PrometheusStatLogger", (Logger,), {})},
    }
    for name in ("vllm", "vllm.distributed", "vllm.distributed.parallel_state", "vllm.v1", "vllm.v1.worker", "vllm.v1.metrics"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name, content in contents.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(
        sys.modules, "vllm.v1.worker", SimpleNamespace(gpu_model_runner=sys.modules["vllm.v1.worker.gpu_model_runner"])
    )
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics", SimpleNamespace(loggers=sys.modules["vllm.v1.metrics.loggers"]))


def around(folder: Path, script: Any, temperature: float = 0.0) -> type[Runner]:
    """A runner class of its own with the plugin around it."""
    kind = type("GPUModelRunner", (Runner,), {"script": script, "temperature": temperature})
    names = ("_sample", "propose_draft_token_ids", "sample_tokens", "_get_spec_decode_draft_probs", "initialize_kv_cache")
    for name in ("execute_model", *names):
        setattr(kind, name, getattr(Runner, name))
    sys.modules["vllm.v1.worker.gpu_model_runner"].GPUModelRunner = kind  # type: ignore[attr-defined]
    return kind


def played(folder: Path, script: Any, monkeypatch: pytest.MonkeyPatch, temperature: float = 0.0) -> tuple[Runner, list[Trace]]:
    """Every round of the script through the plugin, and what it wrote."""
    around(folder, script, temperature)
    monkeypatch.setenv(plugin.FOLDER, str(folder))
    plugin.register()
    plugin.register()  # vLLM may call it again
    runner = sys.modules["vllm.v1.worker.gpu_model_runner"].GPUModelRunner()  # type: ignore[attr-defined]
    runner.initialize_kv_cache()
    for _ in script:
        runner.execute_model(SimpleNamespace(finished_req_ids=set(), total_num_scheduled_tokens=9))
        runner.sample_tokens(None)
    runner.execute_model(SimpleNamespace(finished_req_ids=set(Runner.names), total_num_scheduled_tokens=0))
    if hasattr(runner._specviz_listener, "_sender"):
        runner._specviz_listener._sender.close()
    return runner, [store.read(path) for path in sorted(folder.glob("*.spectrace.jsonl"))]


SCRIPT = [
    [([], [4]), ([], [9])],
    [([5, 6, 7], [5, 8]), ([], [3])],
    [([2, 2], [2, 2, 6]), ([1, END, 4], [1, END, 4, 2])],
    [([3, 3, 3], [3, 1]), ([5], [5, 5])],
]


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Runner, list[Trace]]:
    return played(tmp_path, SCRIPT, monkeypatch)


def test_each_request_becomes_a_trace_of_its_own(traces: tuple[Runner, list[Trace]]) -> None:
    _, (first, second) = traces
    for trace in (first, second):
        store.read(store.text(trace))
        assert (
            trace.run.title == "N-gram in vLLM"
            and trace.run.target == "tiny"
            and trace.run.parameters["prompt_lookup_max"] == 3.0
        )
        assert {note.data["batch"] for step in trace.steps for note in step.notes} == {2}
    assert first.end is not None and first.end.output_ids == (4, 5, 8, 2, 2, 6, 3) and first.end.reason == "budget"
    assert [node.status for node in first.steps[1].nodes[1:]] == [ACCEPTED, REJECTED, SKIPPED]
    assert first.steps[1].nodes[2].text == NumberedTokens().of(6) and first.steps[1].bonus is not None
    # The last round accepted a token and sampled another, of which one was left of seven.
    assert (first.steps[3].cut, first.steps[3].bonus, first.steps[3].accepted) == ("budget", None, 1)
    assert second.end is not None and second.end.output_ids == (9, 3, 1, END) and second.end.reason == "eos"
    last = second.steps[-1]
    assert len(second.steps) == 3 and last.cut == "eos" and last.path == (1, 2, 3) and last.accepted == 2


def test_probabilities_are_those_of_the_targets_rows(traces: tuple[Runner, list[Trace]]) -> None:
    runner, (first, second) = traces
    rows = runner.logits[2].softmax(-1)  # request a has rows 0 to 2, b has 3 to 6
    for trace, begin, drafted in ((first, 0, [2, 2]), (second, 3, [1, END])):
        step = trace.steps[2]
        assert [node.p for node in step.nodes[1 : len(drafted) + 1]] == pytest.approx(
            [float(rows[begin + place, token]) for place, token in enumerate(drafted)], abs=1e-4
        )
        assert step.rows[1].top[0].token == int(rows[begin + 1].argmax())
    assert first.steps[2].bonus is not None and first.steps[2].bonus.p == pytest.approx(float(rows[2, 6]), abs=1e-4)
    assert all(node.q is None for step in first.steps for node in step.nodes)


def test_sampled_requests_show_the_warped_probability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, (first, _) = played(tmp_path, SCRIPT, monkeypatch, temperature=0.5)
    rows = (runner.logits[1] / 0.5).softmax(-1)
    assert first.steps[1].nodes[1].p == pytest.approx(float(rows[0, 5]), abs=1e-4)
    assert first.steps[1].rule == "ratio" and first.steps[1].certain and first.steps[1].bonus is not None
    assert first.steps[1].bonus.source == "residual"


def test_a_token_drawn_again_after_its_rejection_was_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = [[([], [4]), ([], [9])], [([5, 6], [5]), ([7], [7, 1])]]
    _, (first, second) = played(tmp_path, script, monkeypatch, temperature=0.5)
    step = first.steps[1]
    assert (step.accepted, step.nodes[1].status, step.emitted) == (0, REJECTED, (5,)) and step.bonus is not None
    assert second.steps[1].accepted == 1


def test_the_servers_metrics_say_how_it_speculates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played(tmp_path, SCRIPT, monkeypatch)
    Logger.lines.clear()
    config = SimpleNamespace(speculative_config=SimpleNamespace(method="eagle3", model="/secret/head/", num_speculative_tokens=4))
    sys.modules["vllm.v1.metrics.loggers"].PrometheusStatLogger(config).log_engine_initialized()  # type: ignore[attr-defined]
    (told,) = Logger.lines
    assert (told["method"], told["model"], told["num_speculative_tokens"]) == ("eagle3", "head", "4")
    config = SimpleNamespace(speculative_config=None)
    sys.modules["vllm.v1.metrics.loggers"].PrometheusStatLogger(config).log_engine_initialized()  # type: ignore[attr-defined]
    assert set(Logger.lines[1].values()) == {""}


def test_nothing_happens_unless_a_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kind = around(tmp_path, SCRIPT)
    before = dict(vars(kind))
    monkeypatch.delenv(plugin.FOLDER, raising=False)
    plugin.register()
    assert dict(vars(kind)) == before


def test_another_rank_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = SimpleNamespace(is_last_rank=True, is_first_rank=False)
    monkeypatch.setattr(sys.modules["vllm.distributed.parallel_state"], "get_tp_group", lambda: other)
    around(tmp_path, SCRIPT)
    monkeypatch.setenv(plugin.FOLDER, str(tmp_path / "none"))
    plugin.register()
    runner = sys.modules["vllm.v1.worker.gpu_model_runner"].GPUModelRunner()  # type: ignore[attr-defined]
    runner.execute_model(SimpleNamespace(finished_req_ids=set(), total_num_scheduled_tokens=9))
    runner.sample_tokens(None)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("wrong", ["a fault of ours", "a folder that cannot be written", "a reader who is behind"])
def test_what_goes_wrong_leaves_the_server_alone(
    wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if wrong == "a fault of ours":
        monkeypatch.setattr(plugin.Listener, "scored", lambda *given: 1 / 0)
    elif wrong == "a reader who is behind":
        monkeypatch.setattr(plugin, "MOST_WAITING", -1)
    else:
        (tmp_path / "file").write_text("")
    runner, traces = played(tmp_path / ("file" if "folder" in wrong else ""), SCRIPT, monkeypatch)
    assert runner.round == len(SCRIPT) and not traces
    assert caplog.text.count("the server goes on") == ("behind" not in wrong)


def test_files_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(request_recorder, "MOST_FILES", 1)
    one = request_recorder.RequestRecorder(tmp_path)
    one.take("server", SERVER, {})
    for name in "ab":
        one.take("start", [name, [1, 2], ASKED], {})
    assert len(list(tmp_path.glob("*.spectrace.jsonl"))) == 1


def test_a_request_id_overwrites_no_file_and_files_are_their_users_alone(tmp_path: Path) -> None:
    one = request_recorder.RequestRecorder(tmp_path)
    one.take("server", SERVER, {})
    for prompt in ([1, 2], [3, 4], [5, 6]):
        one.take("start", ["../a", prompt, ASKED], {})
    files = sorted(tmp_path.glob("*.spectrace.jsonl"), key=lambda file: (len(file.name), file.name))
    assert [file.name.partition(".spectrace")[0] for file in files] == [".._a", ".._a-2", ".._a-3"]
    assert [store.read(file).run.prompt for file in files] == ["<1><2>", "<3><4>", "<5><6>"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_what_was_sent_is_written_where_the_server_is_gone(tmp_path: Path) -> None:
    """The input breaks off within a message: the rounds before it are there, and no end that nobody saw."""
    pipe = io.BytesIO()
    request_recorder.send(pipe, "server", SERVER)
    request_recorder.send(pipe, "start", ["a", [1, 2, 3], ASKED])
    arrays = {
        "sampled": np.array([[4]]), "sampled_p": np.array([[0.25]], np.float32), "top": np.array([[0.5]], np.float32),
        "top_ids": np.array([[4]]),
    }  # fmt: skip
    for _ in range(3):
        request_recorder.send(pipe, "round", [["a"], [0], [False], [0, 5, 6, 7], 3], arrays)
    request_recorder.main(str(tmp_path), io.BytesIO(pipe.getvalue()[:-3]))
    trace = store.read(tmp_path / "a.spectrace.jsonl")
    assert trace.end is None and [step.emitted for step in trace.steps] == [(4,), (4,)]
    assert trace.steps[1].bonus is not None and trace.steps[1].bonus.p == 0.25
