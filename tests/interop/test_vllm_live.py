"""SmolLM2 on a real vLLM with the plugin: what the traces say is what the server counts. Needs tests/interop/setup.sh."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from specviz.__main__ import main
from specviz.errors import BadInput
from specviz.interop import client
from specviz.interop.server import Answer, Server, identify
from specviz.interop.server_counters import Counters, counters
from specviz.interop.vllm_plugin.labels import DRAFTER
from specviz.pipeline.request import Request
from specviz.trace import store
from specviz.trace.schema import ACCEPTED, Step

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("SPECVIZ_VLLM_PYTHON", "")
START_SECONDS = 900
FACTS = json.loads(Path(__file__).with_name("vllm_facts.json").read_text("utf-8"))
PROMPTS, WAYS, OWN = FACTS["prompts"], FACTS["ways"], FACTS["own"]

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="SPECVIZ_VLLM_PYTHON is not set; see tests/interop/setup.sh"),
]


@dataclass
class Running:
    """A server of ours and the folder that its plugin writes to."""

    server: Server
    traces: Path
    process: subprocess.Popen[bytes]


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A first answer compiles what it needs, which takes minutes where others compute."""
    monkeypatch.setattr(client, "SILENT_SECONDS", 600.0)


def model():
    """SmolLM2's folder in the cache."""
    from specviz.models.hub.cache_dir import cache_folder

    return cache_folder() / "models" / "smollm2-135m-instruct"


@contextmanager
def vllm(
    folder,
    speculative,
    own=None,
):
    """A server with this way of speculating, and the plugin. ``own`` is a drafter of ours for its ``custom_class``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "SPECVIZ_VLLM_TRACES": str(folder / "traces"), "VLLM_CPU_KVCACHE_SPACE": "1",
        DRAFTER: json.dumps(own or {}),
    }  # fmt: skip
    command = [
        PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model()), "--port", str(port),
        "--dtype", "bfloat16",
        "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "8",
    ]  # fmt: skip
    if speculative is not None:
        command += ["--per-request-spec-decode-metrics", "detailed", "--speculative-config", json.dumps(speculative)]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield Running(_answering(f"http://127.0.0.1:{port}", process, folder), folder / "traces", process)
    finally:
        _kill(process)


def _answering(url, process, folder):
    until = time.monotonic() + START_SECONDS
    waiting = threading.Event()
    while time.monotonic() < until and process.poll() is None:
        try:
            return identify(url)
        except BadInput:
            waiting.wait(1.0)
    raise AssertionError((folder / "server.log").read_text()[-3000:])


def _kill(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def answers(running, prompts):
    """All prompts at once, as a client sees the answers."""

    def ask(prompt):
        answer = Answer(running.server, Request("autoregressive", prompt, max_new_tokens=48))
        for _ in answer.events():
            pass
        return answer.trace

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(ask, prompts))


def recorded(running, count):
    """The plugin's traces, once all are closed."""
    until, waiting = time.monotonic() + 60, threading.Event()
    while time.monotonic() < until:
        traces = [store.read(path) for path in sorted(running.traces.glob("*.spectrace.jsonl"))]
        if len(traces) == count and all(trace.end is not None for trace in traces):
            return traces
        waiting.wait(0.5)
    raise AssertionError(f"{len(traces)} traces, {sum(trace.end is None for trace in traces)} of them open")


def counted(traces):
    """What the traces say, as the server counts it."""
    steps = [step for trace in traces for step in trace.steps if step.verified]
    places = {}
    for step in steps:
        for place, node in enumerate(step.nodes[1:]):
            places[place] = places.get(place, 0) + (node.status == ACCEPTED)
    width = max(places) + 1
    by_place = tuple(places.get(place, 0) for place in range(width))
    return Counters(len(steps), sum(step.verified for step in steps), sum(by_place), by_place)


@pytest.mark.parametrize("way", WAYS)
def test_traces_say_what_the_server_counts_of_eight_requests_at_once(way, tmp_path):
    speculative = dict(WAYS[way])
    if way == "draft":
        speculative["model"] = str(model())
    if way == "eagle3":
        assert main(["export-drafter", "eagle3", "--to", "speculators", "--out", str(tmp_path / "head")]) == 0
        speculative["model"] = str(tmp_path / "head")
    with vllm(tmp_path, speculative, OWN) as running:
        before = counters(running.server.url)
        seen = answers(running, PROMPTS)
        traces = recorded(running, len(PROMPTS))
        after = counters(running.server.url)
    ours, theirs = counted(traces), after.since(before)
    assert (ours.drafts, ours.drafted, ours.accepted) == (theirs.drafts, theirs.drafted, theirs.accepted)
    assert ours.by_place == theirs.by_place[: len(ours.by_place)] and not any(theirs.by_place[len(ours.by_place) :])
    texts = {trace.end.output_ids: trace.end.text for trace in traces if trace.end is not None}
    for trace in [*traces, *seen]:
        store.read(store.text(trace))
    for trace in seen:
        assert texts[trace.end.output_ids] == trace.end.text
    # A client that asks for the counts a draft rebuilds the same rounds.
    assert sum(step.verified for trace in seen for step in trace.steps) == ours.drafted


def test_a_method_runs_there_and_here_and_both_write_the_same(tmp_path):
    out, page = tmp_path / "there.spectrace.jsonl", tmp_path / "both.html"
    with vllm(tmp_path, WAYS["own"], OWN) as running:
        asked = ["run", "--method", "prompt_lookup", "--param", "occurrence=latest", "--param", "copied=6", "--engine", "vllm"]
        where = ["--server", running.server.url, "--traces", str(running.traces), "--out", str(out), "--compare", str(page)]
        assert main([*asked, *where, "--prompt", PROMPTS[0], "--max-new-tokens", "24"]) == 0
        assert main([*asked, "--param", "shortest=2", "--server", running.server.url, "--prompt", PROMPTS[0]]) != 0
    trace = store.read(out)
    assert trace.run.title == "Prompt lookup in vLLM" and not any("does not report" in word for word in trace.run.warnings)
    assert all(node.text for step in trace.steps for node in step.nodes), "the plugin names rejected drafts"
    here = re.search(r'id="right-trace">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    ours = store.read(here[1].encode())
    # Where both wrote the same, our drafter drafted the same there and here.
    drafts = [
        {step.position: tuple(node.token for node in step.nodes[1:]) for step in one.steps if one_text(one, step)}
        for one in (trace, ours)
    ]
    same = drafts[0].keys() & drafts[1].keys()
    assert same and all(drafts[0][place] == drafts[1][place] for place in same)


def one_text(trace, step):
    """Whether the step stands within the first ten tokens, where rounding has not parted the texts."""
    return 0 < step.position - trace.steps[0].position < 10


def test_a_server_killed_in_the_middle_leaves_what_it_did(tmp_path):
    with vllm(tmp_path, WAYS["ngram"]) as running:
        answer = Answer(running.server, Request("autoregressive", "Write a long story about a lighthouse.", max_new_tokens=400))
        for number, event in enumerate(answer.events()):
            if isinstance(event, Step) and number == 12:
                _kill(running.process)
    assert answer.trace.end.reason == "error" and "broke off" in answer.trace.end.message
    # The process that writes outlives the server by as long as it takes to write what it was sent.
    until, waiting = time.monotonic() + 120, threading.Event()
    found = []
    while time.monotonic() < until and not (found and len(found[0].steps) >= 12):
        waiting.wait(0.5)
        found = [store.read(path) for path in running.traces.glob("*.spectrace.jsonl") if path.stat().st_size]
    (trace,) = found
    assert trace.end is None and len(trace.steps) >= 12
    ours = [token for step in answer.trace.steps for token in step.emitted]
    assert [token for step in trace.steps for token in step.emitted][: len(ours)] == ours
