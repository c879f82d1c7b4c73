"""Wrappers of vLLM's model runner that record the times, drafts and samples of each round.

One worker records: the first rank of the tensor-parallel group in the last pipeline stage, which has the logits. All ranks sample
alike. Recording never waits for a GPU: times are CUDA events, and numbers are copied asynchronously.

In vLLM's process, a thread sends the numbers to a writer process (:mod:`.request_recorder`), which turns them into steps. If vLLM
is killed, the writer still finishes its input.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from specviz.interop.chain import by_name, short_name
from specviz.interop.vllm_plugin.labels import DRAFTER, INFO, SETTINGS
from specviz.interop.vllm_plugin.request_recorder import send

FOLDER = "SPECVIZ_VLLM_TRACES"
TOP = 3
_LOG = logging.getLogger("vllm.specviz")
_OURS = "_specviz_listener"
Mark = Any
"""A moment: nanoseconds on the host's clock, a CUDA event, or None if missing."""
MOST_WAITING = 20_000
"""Maximum number of rounds waiting to be sent; above it, new requests are served but not recorded."""
CLOSING_SECONDS = 10.0
TITLES = {
    "ngram": "N-gram", "ngram_gpu": "N-gram", "suffix": "Suffix decoding", "draft_model": "Draft model", "eagle": "EAGLE",
    "eagle3": "EAGLE-3", "medusa": "Medusa", "mtp": "Multi-token prediction", "custom_class": "Custom proposer",
}  # fmt: skip


def register() -> None:
    """Entry point for vLLM, which calls it in each of its processes, possibly more than once."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    from vllm.v1.metrics import loggers
    from vllm.v1.worker import gpu_model_runner

    logger, runner = loggers.PrometheusStatLogger, gpu_model_runner.GPUModelRunner
    if not hasattr(runner, _OURS):
        setattr(runner, _OURS, None)
        _tell_configuration(logger)
        for name in _WRAPPED:
            _wrap(runner, name, folder)


def _tell_configuration(logger: Any) -> None:
    """Add a line with the server's speculative settings to ``/metrics``, for clients to compare."""
    plain_initialized = logger.log_engine_initialized

    def log_engine_initialized(self: Any) -> None:
        plain_initialized(self)
        try:
            speculative = self.vllm_config.speculative_config
            labels = {name: short_name(getattr(speculative, name, None)) for name in SETTINGS}
            labels[DRAFTER] = os.environ.get(DRAFTER, "") if labels["method"] == "custom_class" else ""
            help_text = "Speculative settings of this server; no method if it does not speculate."
            gauge = self._gauge_cls(name=INFO, documentation=help_text, multiprocess_mode="mostrecent", labelnames=list(labels))
            gauge.labels(**labels).set(1)
        except Exception:  # recording must never stop a server
            _LOG.exception("specviz cannot report the speculative settings; the server continues.")

    logger.log_engine_initialized = log_engine_initialized


_WRAPPED: dict[str, tuple[str, str]] = {
    "initialize_kv_cache": ("", ""),  # starts the writer, which loads a tokenizer, during the server's warm-up
    "execute_model": ("begin", ""),
    "_sample": ("scored", "sampled"),
    "_get_spec_decode_draft_probs": ("", "drafted"),
    "propose_draft_token_ids": ("drafting", "drafting"),
    "sample_tokens": ("", "end"),
}
"""Methods of vLLM's model runner, with the listener's methods that receive their arguments and results."""


def _wrap(runner: Any, name: str, folder: str) -> None:
    """Wrap a method so that the listener receives its arguments and result; the result is unchanged."""
    plain, (before, after) = getattr(runner, name), _WRAPPED[name]

    def wrapped(self: Any, *given: Any, **named: Any) -> Any:
        listener = getattr(self, _OURS)
        if listener is None:
            listener = Listener(self, folder)
            setattr(self, _OURS, listener)
        listener.hear(before, *given, **named)
        answer = plain(self, *given, **named)
        listener.hear(after, answer)
        return answer

    setattr(runner, name, wrapped)


class Listener:
    """Collector of the rounds of one model runner. ``active``: False in workers that do not record."""

    def __init__(self, runner: Any, folder: str) -> None:
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group

        self.runner = runner
        self.active = get_pp_group().is_last_rank and get_tp_group().is_first_rank
        self._sender: Sender
        self._p: torch.Tensor
        self.hear("_open", folder)
        self._round: Round | None = None
        self._draft: tuple[Mark, Mark] = (None, None)
        self._ended: Mark = None
        self._known: set[str] = set()

    def hear(self, what: str, *args: Any, **named: Any) -> None:
        """Call the listener's method ``what``. The first fault is logged and ends the recording, never the server."""
        if not self.active or not what:
            return
        try:
            getattr(self, what)(*args, **named)
        except Exception:  # recording must never stop a server
            self.active = False
            _LOG.exception("specviz stopped recording; the server continues.")

    def _open(self, folder: str) -> None:
        self._sender = Sender(folder, self.runner.vllm_config)

    def _mark(self) -> Mark:
        if self.runner.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return time.perf_counter_ns()

    def begin(self, scheduler_output: Any, *given: Any, **named: Any) -> None:
        """Start a round, and finish requests that have ended since the previous one."""
        for name in self._known.intersection(scheduler_output.finished_req_ids):
            self._known.remove(name)
            self._sender.put("finish", name)
        self._round = None
        if scheduler_output.total_num_scheduled_tokens:
            scheduled = int(scheduler_output.total_num_scheduled_tokens)
            self._round = Round(scheduled, begun=self._mark(), draft=self._draft, idle_since=self._ended)
            self._draft = (None, None)

    def scored(self, logits: torch.Tensor | None, metadata: Any) -> None:
        """Record the target's pass. Each request has a row of ``logits`` [row, vocab] per drafted token, and one more."""
        round_ = self._round
        if round_ is None or logits is None:
            return
        round_.scored = self._mark()
        batch = self.runner.input_batch
        round_.names = list(batch.req_ids)
        round_.counts = [0] * len(round_.names) if metadata is None else [int(count) for count in metadata.num_draft_tokens]
        round_.discarded = self.runner.discard_request_mask.np[: len(round_.names)].tolist()
        for name in [name for name in round_.names if name not in self._known]:
            self._known.add(name)
            request = self.runner.requests[name]
            self._sender.start(name, list(request.prompt_token_ids or ()), request.sampling_params)
        # p is recorded at each request's temperature.
        found = [float(self.runner.requests[name].sampling_params.temperature or 1.0) for name in round_.names]
        if set(found) != {1.0}:
            rows = torch.tensor(round_.counts) + 1
            logits = logits.float() / torch.tensor(found).repeat_interleave(rows)[:, None].to(logits.device)
        p = self._p = logits.float().softmax(-1)
        best = p.topk(TOP, -1)
        round_.keep("top", best.values)
        round_.keep("top_ids", best.indices)
        if metadata is not None:
            round_.keep("drafted", metadata.draft_token_ids)
            requests = torch.arange(len(round_.counts)).repeat_interleave(torch.tensor(round_.counts))
            rows = (torch.arange(len(requests)) + requests).to(p.device)
            round_.keep("p", p[rows, metadata.draft_token_ids.to(p.device).long()[: len(rows)].clamp_min(0)])

    def drafted(self, probs: torch.Tensor | None) -> None:
        """Record q from the drafter's distributions [drafted token, vocab] of this round, if vLLM keeps them."""
        if self._round is not None and probs is not None and "drafted" in self._round.kept:
            ids = self._round.kept["drafted"].to(probs.device).long()
            self._round.keep("q", probs[: len(ids)].gather(-1, ids[:, None])[:, 0])

    def sampled(self, output: Any) -> None:
        """Record the verdict: ``sampled_token_ids`` [request, token], padded with -1."""
        round_ = self._round
        if round_ is None or not round_.names:
            return
        round_.judged = self._mark()
        sampled, p = output.sampled_token_ids, self._p
        round_.keep("sampled", sampled)
        first = torch.tensor([0, *(count + 1 for count in round_.counts[:-1])]).cumsum(0).to(p.device)
        rows = (first[:, None] + torch.arange(sampled.shape[1], device=p.device)).clamp_max(len(p) - 1)
        round_.keep("sampled_p", p[rows, sampled.long().clamp(0, p.shape[-1] - 1)])
        del self._p

    def drafting(self, *given: Any, **named: Any) -> None:
        """Record the start or end of drafting for the next round."""
        self._draft = self._draft[1], self._mark()

    def end(self, answer: Any) -> None:
        """End the round and send it to the writer."""
        round_, self._round = self._round, None
        if round_ is None or not round_.names or "sampled" not in round_.kept:
            return
        self._ended = self._mark()
        round_.to_host(self.runner.device)
        self._sender.put("round", round_)


def between(start: Mark, end: Mark) -> int:
    """Return nanoseconds between two moments of the same kind; 0 if the first is missing."""
    if start is None:
        return 0
    if isinstance(start, int):
        return max(0, int(end) - start)
    end.synchronize()
    return max(0, int(start.elapsed_time(end) * 1e6))


@dataclass
class Round:
    """One pass of the target over a batch of requests.

    Tensor rows are in the order of ``names``. ``counts``: number of drafted tokens of each request.
    """

    scheduled: int
    begun: Mark
    draft: tuple[Mark, Mark]
    idle_since: Mark
    scored: Mark = 0
    judged: Mark = 0
    names: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    discarded: list[bool] = field(default_factory=list)
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    ready: Any = None

    def keep(self, name: str, values: torch.Tensor) -> None:
        """Store a copy of a tensor that is read after the round; vLLM reuses its buffers."""
        self.kept[name] = values.detach().clone()

    def to_host(self, device: torch.device) -> None:
        """Start the copies to the host without waiting for them."""
        if device.type == "cuda":
            self.kept = {name: values.to("cpu", non_blocking=True) for name, values in self.kept.items()}
            self.ready = torch.cuda.Event()
            self.ready.record()

    def plain(self) -> tuple[list[Any], dict[str, np.ndarray]]:
        """Return the content of the message (names, counts, discarded, times in ns, rows of the pass), and the arrays by name."""
        if self.ready is not None:
            self.ready.synchronize()
        times = (
            between(*self.draft),
            between(self.begun, self.scored),
            between(self.scored, self.judged),
            between(self.idle_since, self.begun),
        )
        arrays = {name: (kept.float() if kept.dtype.is_floating_point else kept).numpy() for name, kept in self.kept.items()}
        return [self.names, self.counts, self.discarded, times, self.scheduled], arrays


class Sender:
    """The writer process and the thread that feeds it. ``config``: vLLM's config."""

    def __init__(self, folder: str, config: Any) -> None:
        os.makedirs(folder, exist_ok=True)
        self._queue: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self._full = False
        command = [sys.executable, "-m", "specviz.interop.vllm_plugin.request_recorder", folder]
        # In a new session, so that Ctrl-C or a signal to vLLM's process group does not end the writer too.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self.put("server", settings_of(config))
        self._thread = threading.Thread(target=self._work, name="specviz", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def start(self, name: str, prompt: list[int], params: Any) -> None:
        """Send the start of a request, unless too many rounds are waiting."""
        if self._queue.qsize() > MOST_WAITING:
            if not self._full:
                self._full = True
                _LOG.warning("specviz is %d rounds behind; new requests are not recorded until it catches up.", MOST_WAITING)
            return
        defaults = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "max_tokens": 0, "min_tokens": 0}
        asked = {name: type(value)(getattr(params, name) or value) for name, value in defaults.items()}
        # Tokens at which vLLM's scheduler ends a text.
        ends = params.stop_token_ids if params.ignore_eos else params.all_stop_token_ids or params.stop_token_ids
        self.put("start", (name, prompt, {**asked, "ends": sorted(ends or ())}))

    def put(self, kind: str, content: Any) -> None:
        """Queue a message of this kind (see :mod:`.request_recorder`); the thread converts rounds to plain values."""
        self._queue.put((kind, content))

    def close(self) -> None:
        """Send the waiting messages, and wait until they are written."""
        self._queue.put(None)
        self._thread.join(CLOSING_SECONDS)
        try:
            self._process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            _LOG.warning("specviz is still writing traces and will exit by itself.")

    def _work(self) -> None:
        out = self._process.stdin
        assert out is not None
        try:
            while (item := self._queue.get()) is not None:
                kind, content = item
                send(out, kind, *(content.plain() if isinstance(content, Round) else (content,)))
            out.close()
        except Exception:
            _LOG.exception("specviz stopped recording; the server continues.")
            while self._queue.get() is not None:
                pass  # drop messages that will not be written


def settings_of(config: Any) -> dict[str, Any]:
    """Return the trace fields common to the server's runs (``run``), and arguments for loading the tokenizer, as plain values."""
    import vllm

    speculative, model, parallel = config.speculative_config, config.model_config, config.parallel_config
    parameters = {"tensor_parallel": parallel.tensor_parallel_size, "pipeline_parallel": parallel.pipeline_parallel_size}
    for name in ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"):
        parameters[name] = getattr(speculative, name, None)
    method = "" if speculative is None else str(speculative.method)
    drafter = str(getattr(speculative, "model", None) or "")
    run = {
        "target": short_name(model.model),
        "method": f"vllm_{method or 'autoregressive'}",
        "title": f"{TITLES.get(method, method or 'Autoregressive')} in vLLM",
        "draft": "" if drafter in ("ngram", "suffix", method) else short_name(drafter),
        "parameters": by_name(parameters),
        "device": str(config.device_config.device_type),
        "dtype": str(model.dtype).removeprefix("torch."),
        "tier": "eager" if model.enforce_eager else "compiled",
        "libraries": {"vllm": vllm.__version__, "torch": torch.__version__},
    }
    names = ("tokenizer", "runner_type", "tokenizer_mode", "trust_remote_code")
    tokenizer = {name: getattr(model, name) for name in names} | {"revision": model.tokenizer_revision}
    return {"run": run, "tokenizer": None if model.skip_tokenizer_init else tokenizer, "max_model_len": model.max_model_len}
