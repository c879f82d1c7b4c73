"""The vLLM plugin on a stand-in for vLLM's model runner: same methods, same tensors, no server."""

import io
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from specviz.interop.chain import NumberedTokens
from specviz.interop.vllm_plugin import plugin, request_recorder
from specviz.trace import store
from specviz.trace.schema import ACCEPTED, REJECTED, SKIPPED

VOCAB, END = 16, 15
FACTS = json.loads(Path(__file__).with_name("vllm_facts.json").read_text("utf-8"))
"""vLLM's own configuration and a request's parameters, as far as the plugin reads them, and what it makes of them."""
ASKED, SERVER = FACTS["asked"] | {"ends": [END]}, FACTS["server"]


def spaces(fields):
    """The fields as attributes, at every depth."""
    return json.loads(json.dumps(fields), object_hook=lambda inner: SimpleNamespace(**inner))


class Runner:
    """What vLLM's model runner is to the plugin. ``script`` [round][request]: (drafted, sampled)."""

    script = []
    names = ["a", "b"]
    temperature = 0.0

    def __init__(self):
        self.device = torch.device("cpu")
        self.vllm_config = spaces(FACTS["config"])
        params = spaces({**FACTS["params"], "temperature": self.temperature, "all_stop_token_ids": [END]})
        self.requests = {name: SimpleNamespace(prompt_token_ids=[1, 2, 3], sampling_params=params) for name in self.names}
        self.input_batch = SimpleNamespace(req_ids=list(self.names))
        self.discard_request_mask = SimpleNamespace(np=np.zeros(8, dtype=bool))
        self.round = 0
        self.logits = []

    def initialize_kv_cache(self):
        """vLLM's: the model is there, and room for its keys and values."""

    def execute_model(self, scheduler_output):
        """vLLM's: the target's pass."""

    def _sample(self, logits, metadata):
        self._get_spec_decode_draft_probs(metadata)
        rows = self.script[self.round]
        wide = max(len(sampled) for _, sampled in rows)
        return SimpleNamespace(sampled_token_ids=torch.tensor([[*said, *([-1] * (wide - len(said)))] for _, said in rows]))

    def _get_spec_decode_draft_probs(self, metadata):
        return None

    def propose_draft_token_ids(self):
        """vLLM's: the drafter's turn."""

    def sample_tokens(self, grammar=None):
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

    lines = []

    def __init__(self, config):
        self.vllm_config = config

    def _gauge_cls(self, name, labelnames, **more):
        def labels(**told):
            assert list(told) == labelnames and name == "specviz:speculative_config_info"
            return SimpleNamespace(set=lambda value: self.lines.append(told))

        return SimpleNamespace(labels=labels)

    def log_engine_initialized(self):
        """vLLM's: the engine is up."""


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    """Modules of vLLM's name with what the plugin asks of them."""
    group = SimpleNamespace(is_last_rank=True, is_first_rank=True)
    contents = {
        "vllm": {"__version__": "0.0"},
        "vllm.distributed.parallel_state": {"get_pp_group": lambda: group, "get_tp_group": lambda: group},
        "vllm.v1.worker.gpu_model_runner": {},
        "vllm.v1.metrics.loggers": {"PrometheusStatLogger": type("PrometheusStatLogger", (Logger,), {})},
    }
    for name in ("vllm", "vllm.distributed", "vllm.v1", "vllm.v1.worker", "vllm.v1.metrics", *contents):
        module = ModuleType(name)
        vars(module).update(contents.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)


def around(script, temperature=0.0):
    """A runner class of its own with the plugin around it."""
    kind = type("GPUModelRunner", (Runner,), {"script": script, "temperature": temperature})
    sys.modules["vllm.v1.worker.gpu_model_runner"].GPUModelRunner = kind
    plugin.register()
    plugin.register()  # vLLM may call it again
    return kind


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the plugin writes."""
    monkeypatch.setenv(plugin.FOLDER, str(tmp_path))
    return tmp_path


def played(folder, temperature=0.0, script=None):
    """Every round of the script through the plugin, and what it wrote."""
    runner = around(script or SCRIPT, temperature)()
    runner.initialize_kv_cache()
    for _ in runner.script:
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


def test_each_request_becomes_a_trace_of_its_own(folder):
    _, (first, second) = played(folder)
    for trace in (first, second):
        store.read(store.text(trace))
        assert (
            trace.run.title == "N-gram in vLLM"
            and trace.run.target == "tiny"
            and trace.run.parameters["prompt_lookup_max"] == 3.0
        )
        assert {note.data["batch"] for step in trace.steps for note in step.notes} == {2}
    assert first.end.output_ids == (4, 5, 8, 2, 2, 6, 3) and first.end.reason == "budget"
    assert [node.status for node in first.steps[1].nodes[1:]] == [ACCEPTED, REJECTED, SKIPPED]
    assert first.steps[1].nodes[2].text == NumberedTokens().of(6) and first.steps[1].bonus is not None
    # The last round accepted a token and sampled another, of which one was left of seven.
    assert (first.steps[3].cut, first.steps[3].bonus, first.steps[3].accepted) == ("budget", None, 1)
    assert second.end.output_ids == (9, 3, 1, END) and second.end.reason == "eos"
    last = second.steps[-1]
    assert len(second.steps) == 3 and last.cut == "eos" and last.path == (1, 2, 3) and last.accepted == 2


def test_probabilities_are_those_of_the_targets_rows(folder):
    runner, (first, second) = played(folder)
    rows = runner.logits[2].softmax(-1)  # request a has rows 0 to 2, b has 3 to 6
    for trace, begin, drafted in ((first, 0, [2, 2]), (second, 3, [1, END])):
        step = trace.steps[2]
        assert [node.p for node in step.nodes[1 : len(drafted) + 1]] == pytest.approx(
            [float(rows[begin + place, token]) for place, token in enumerate(drafted)], abs=1e-4
        )
        assert step.rows[1].top[0].token == int(rows[begin + 1].argmax())
    assert first.steps[2].bonus.p == pytest.approx(float(rows[2, 6]), abs=1e-4)
    assert all(node.q is None for step in first.steps for node in step.nodes)


def test_sampled_requests_show_the_warped_probability(folder):
    runner, (first, _) = played(folder, 0.5)
    rows = (runner.logits[1] / 0.5).softmax(-1)
    assert first.steps[1].nodes[1].p == pytest.approx(float(rows[0, 5]), abs=1e-4)
    assert first.steps[1].rule == "ratio" and first.steps[1].certain
    assert first.steps[1].bonus.source == "residual"


def test_a_token_drawn_again_after_its_rejection_was_rejected(folder):
    script = [[([], [4]), ([], [9])], [([5, 6], [5]), ([7], [7, 1])]]
    _, (first, second) = played(folder, 0.5, script)
    step = first.steps[1]
    assert (step.accepted, step.nodes[1].status, step.emitted) == (0, REJECTED, (5,)) and step.bonus is not None
    assert second.steps[1].accepted == 1


def test_the_servers_metrics_say_how_it_speculates(folder):
    around(SCRIPT)
    Logger.lines.clear()
    config = SimpleNamespace(speculative_config=SimpleNamespace(method="eagle3", model="/secret/head/", num_speculative_tokens=4))
    sys.modules["vllm.v1.metrics.loggers"].PrometheusStatLogger(config).log_engine_initialized()
    (told,) = Logger.lines
    assert (told["method"], told["model"], told["num_speculative_tokens"]) == ("eagle3", "head", "4")
    config = SimpleNamespace(speculative_config=None)
    sys.modules["vllm.v1.metrics.loggers"].PrometheusStatLogger(config).log_engine_initialized()
    assert set(Logger.lines[1].values()) == {""}


def test_nothing_happens_unless_a_folder_is_named(monkeypatch):
    monkeypatch.delenv(plugin.FOLDER, raising=False)
    assert around(SCRIPT).sample_tokens is Runner.sample_tokens


def test_another_rank_tells_nothing(monkeypatch, folder):
    other = SimpleNamespace(is_last_rank=True, is_first_rank=False)
    monkeypatch.setattr(sys.modules["vllm.distributed.parallel_state"], "get_tp_group", lambda: other)
    assert not played(folder)[1]


@pytest.mark.parametrize("wrong", ["a fault of ours", "a folder that cannot be written", "a reader who is behind"])
def test_what_goes_wrong_leaves_the_server_alone(wrong, monkeypatch, folder, caplog):
    if wrong == "a fault of ours":
        monkeypatch.setattr(plugin.Listener, "scored", lambda *given: 1 / 0)
    elif wrong == "a reader who is behind":
        monkeypatch.setattr(plugin, "MOST_WAITING", -1)
    else:
        (folder / "file").write_text("")
        monkeypatch.setenv(plugin.FOLDER, str(folder / "file"))
    runner, traces = played(folder)
    assert runner.round == len(SCRIPT) and not traces
    assert caplog.text.count("the server continues") == ("behind" not in wrong)


def test_files_are_bounded_in_number(monkeypatch, tmp_path):
    monkeypatch.setattr(request_recorder, "MOST_FILES", 1)
    one = request_recorder.RequestRecorder(tmp_path)
    one.take("server", SERVER, {})
    for name in "ab":
        one.take("start", [name, [1, 2], ASKED], {})
    assert len(list(tmp_path.glob("*.spectrace.jsonl"))) == 1


def test_a_request_id_overwrites_no_file_and_files_are_their_users_alone(tmp_path):
    one = request_recorder.RequestRecorder(tmp_path)
    one.take("server", SERVER, {})
    for prompt in ([1, 2], [3, 4], [5, 6]):
        one.take("start", ["../a", prompt, ASKED], {})
    files = list(tmp_path.glob(".._a-*.spectrace.jsonl"))
    assert sorted(store.read(file).run.prompt for file in files) == ["<1><2>", "<3><4>", "<5><6>"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


@pytest.mark.parametrize("reported", [True, False])
def test_a_block_drafter_s_rounds_have_the_panel_of_the_block(tmp_path, reported):
    one = request_recorder.RequestRecorder(tmp_path)
    one.take("server", {**SERVER, "run": {**SERVER["run"], "method": "vllm_dflash"}}, {})
    one.take("start", ["a", [1, 2], ASKED], {})
    arrays = {
        "drafted": [4, 5, 6], "p": [0.9, 0.2, 0.1], "sampled": [[4, 7, -1, -1]], "sampled_p": [[0.9, 0.8, 0.0, 0.0]],
        "top": [[0.9]] * 4, "top_ids": [[4], [7], [6], [1]],
    }  # fmt: skip
    one.take("round", [["a"], [3], [False], [0, 5, 6, 7], 4], arrays | ({"q": [0.5, 0.25, 0.125]} if reported else {}))
    one.take("finish", "a", {})
    (step,) = store.read(next(tmp_path.glob("a-*.spectrace.jsonl"))).steps
    (note,) = step.notes
    assert note.type == "denoised" and [slot["tokens"] for slot in note.data["places"]] == [[4], [5], [6]]
    assert [slot["probability"] for slot in note.data["places"]] == ([[0.5], [0.25], [0.125]] if reported else [[]] * 3)
    assert len(step.path) == 1 and step.emitted == (4, 7)


def test_what_was_sent_is_written_where_the_server_is_gone(tmp_path):
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
    trace = store.read(next(tmp_path.glob("a-*.spectrace.jsonl")))
    assert trace.end is None and [step.emitted for step in trace.steps] == [(4,), (4,)]
    assert trace.steps[1].bonus.p == 0.25
