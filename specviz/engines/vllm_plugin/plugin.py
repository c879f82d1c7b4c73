"""What the plugin puts around vLLM's model runner: marks of time, and a look at each round's drafts and samples.

One worker sees all of it: the last stage of the pipeline, where there are logits, and there the first rank of the tensor
parallel group, since all ranks sample alike. All others return at once. Nothing waits for a GPU: times are its events,
numbers are copied while it goes on, and a process of their own makes steps of them (:mod:`.scribe`).
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import torch

from specviz.engines.vllm_plugin.labels import DRAFTER, INFO, SETTINGS
from specviz.engines.vllm_plugin.rounds import Mark, Round, Sender

FOLDER = "SPECVIZ_VLLM_TRACES"
TOP = 3
_LOG = logging.getLogger("vllm.specviz")
_OURS = "_specviz_listener"


def register() -> None:
    """vLLM's entry point, called in each of its processes, perhaps more than once."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    from vllm.v1.metrics import loggers
    from vllm.v1.worker import gpu_model_runner

    _tell_configuration(loggers.PrometheusStatLogger)

    runner = gpu_model_runner.GPUModelRunner
    if not hasattr(runner, _OURS):
        setattr(runner, _OURS, None)
        _around(runner, folder)


def _tell_configuration(logger: Any) -> None:
    """A line of ``/metrics`` that says how the server speculates, so that a client can see what it compares with."""
    if hasattr(logger, _OURS):
        return
    setattr(logger, _OURS, None)
    plain_initialized = logger.log_engine_initialized

    def log_engine_initialized(self: Any) -> None:
        plain_initialized(self)
        try:
            speculative = self.vllm_config.speculative_config
            labels = {name: _label(getattr(speculative, name, None)) for name in SETTINGS}
            labels[DRAFTER] = os.environ.get(DRAFTER, "") if labels["method"] == "custom_class" else ""
            help_text = "How this server speculates; no method where it does not."
            gauge = self._gauge_cls(name=INFO, documentation=help_text, multiprocess_mode="mostrecent", labelnames=list(labels))
            gauge.labels(**labels).set(1)
        except Exception:  # a viewer must not stop a server
            _LOG.exception("specviz does not tell how this server speculates; the server goes on.")

    logger.log_engine_initialized = log_engine_initialized


def _label(value: object) -> str:
    """A setting as a label: without the folders that a model lies in."""
    text = "" if value is None else str(value)
    return os.path.basename(text.rstrip("/")) if text.startswith("/") else text


def _around(runner: Any, folder: str) -> None:
    """Wrap the methods that a round goes through. Whatever fails in ours is told once and leaves vLLM's answer alone."""
    plain_execute, plain_sample, plain_draft, plain_finish, plain_q = (
        getattr(runner, name)
        for name in ("execute_model", "_sample", "propose_draft_token_ids", "sample_tokens", "_get_spec_decode_draft_probs")
    )
    plain_initialize = runner.initialize_kv_cache

    def initialize_kv_cache(self: Any, *given: Any, **named: Any) -> Any:
        answer = plain_initialize(self, *given, **named)
        _listener(self, folder)  # what writes the traces loads a tokenizer, while the server still warms up
        return answer

    def execute_model(self: Any, scheduler_output: Any, *more: Any, **named: Any) -> Any:
        listener = _listener(self, folder)
        listener.guarded(listener.begin, scheduler_output)
        return plain_execute(self, scheduler_output, *more, **named)

    def sample(self: Any, logits: Any, metadata: Any) -> Any:
        listener = _listener(self, folder)
        listener.guarded(listener.scored, logits, metadata)
        output = plain_sample(self, logits, metadata)
        listener.guarded(listener.sampled, output)
        return output

    def draft_probs(self: Any, metadata: Any) -> Any:
        probs = plain_q(self, metadata)
        listener = _listener(self, folder)
        listener.guarded(listener.drafted, probs)
        return probs

    def propose(self: Any, *given: Any, **named: Any) -> Any:
        listener = _listener(self, folder)
        listener.guarded(listener.drafting, True)
        answer = plain_draft(self, *given, **named)
        listener.guarded(listener.drafting, False)
        return answer

    def sample_tokens(self: Any, *given: Any, **named: Any) -> Any:
        answer = plain_finish(self, *given, **named)
        listener = _listener(self, folder)
        listener.guarded(listener.end)
        return answer

    runner.execute_model, runner._sample, runner.propose_draft_token_ids = execute_model, sample, propose
    runner.initialize_kv_cache = initialize_kv_cache
    runner.sample_tokens, runner._get_spec_decode_draft_probs = sample_tokens, draft_probs


def _listener(runner: Any, folder: str) -> Listener:
    listener = getattr(runner, _OURS)
    if listener is None:
        listener = Listener(runner, folder)
        setattr(runner, _OURS, listener)
    return listener


class Listener:
    """Gathers the rounds of one model runner. ``active`` is False in workers that have nothing to tell."""

    def __init__(self, runner: Any, folder: str) -> None:
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group

        self.runner = runner
        self.active = get_pp_group().is_last_rank and get_tp_group().is_first_rank
        self._sender: Sender | None = None
        self.guarded(self._open, folder)
        self._round: Round | None = None
        self._draft: tuple[Mark, Mark] | None = None
        self._drafting: Mark | None = None
        self._ended: Mark | None = None
        self._known: set[str] = set()

    def guarded(self, what: Any, *given: Any) -> None:
        """Call it, if this worker tells anything. Its first fault is logged, and ends the recording, never the server."""
        if not self.active:
            return
        try:
            what(*given)
        except Exception:  # a viewer must not stop a server
            self.active = False
            _LOG.exception("specviz stopped recording; the server goes on.")

    def _open(self, folder: str) -> None:
        self._sender = Sender(folder, self.runner.vllm_config)

    def _mark(self) -> Mark:
        if self.runner.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return time.perf_counter_ns()

    def begin(self, scheduler_output: Any) -> None:
        """A round starts; requests that ended since the last one are over."""
        assert self._sender is not None
        for name in scheduler_output.finished_req_ids:
            if name in self._known:
                self._known.discard(name)
                self._sender.finish(name)
        self._round = None
        if scheduler_output.total_num_scheduled_tokens:
            self._round = Round(begun=self._mark(), draft=self._draft, idle_since=self._ended)
            self._round.scheduled = int(scheduler_output.total_num_scheduled_tokens)

    def scored(self, logits: torch.Tensor | None, metadata: Any) -> None:
        """The target's pass is over. ``logits`` [row, vocab]: for each request a row a drafted token, and one more."""
        told = self._round
        if told is None or logits is None:
            return
        told.scored = self._mark()
        batch = self.runner.input_batch
        told.names = list(batch.req_ids)
        told.counts = [0] * len(told.names) if metadata is None else [int(count) for count in metadata.num_draft_tokens]
        told.discarded = self.runner.discard_request_mask.np[: len(told.names)].tolist()
        for name in told.names:
            self._meet(name)
        scale = self._temperatures(told, logits.device)
        scaled = logits.float() / scale if scale is not None else logits.float()
        told.keep("log_norm", torch.logsumexp(scaled, -1))
        best = scaled.topk(TOP, -1)
        told.keep("top", best.values), told.keep("top_ids", best.indices)
        self._scaled = scaled
        if metadata is not None:
            told.keep("drafted", metadata.draft_token_ids)
            told.keep("draft_scores", _at_drafts(scaled, metadata.draft_token_ids, told.counts))

    def drafted(self, probs: torch.Tensor | None) -> None:
        """The drafter's distributions [drafted token, vocab] of this round, where the engine keeps them."""
        if self._round is not None and probs is not None and "drafted" in self._round.kept:
            ids = self._round.kept["drafted"].to(probs.device).long()
            self._round.keep("q", probs[: len(ids)].gather(-1, ids[:, None])[:, 0])

    def sampled(self, output: Any) -> None:
        """The verdict. ``sampled_token_ids`` [request, token], -1 where there is none."""
        told = self._round
        if told is None or not told.names:
            return
        told.judged = self._mark()
        told.keep("sampled", output.sampled_token_ids)
        told.keep("sampled_scores", _at_samples(self._scaled, output.sampled_token_ids, told.counts))
        self._scaled = None

    def drafting(self, begins: bool) -> None:
        """The drafter starts or ends, for the next round."""
        if begins:
            self._drafting = self._mark()
        elif self._drafting is not None and self._round is not None:
            self._round.next_draft = (self._drafting, self._mark())

    def end(self) -> None:
        """The round is over: let the writer have it."""
        told, self._round = self._round, None
        if told is None or not told.names or "sampled" not in told.kept:
            return
        self._draft = told.next_draft
        told.ended = self._ended = self._mark()
        told.to_host(self.runner.device)
        assert self._sender is not None
        self._sender.take(told)

    def _meet(self, name: str) -> None:
        """A request seen for the first time."""
        if name in self._known:
            return
        self._known.add(name)
        request = self.runner.requests[name]
        assert self._sender is not None
        self._sender.start(name, list(request.prompt_token_ids or ()), request.sampling_params)

    def _temperatures(self, told: Round, device: torch.device) -> torch.Tensor | None:
        """Each row's temperature [row, 1], or None where all are greedy or 1: p is that of the warped distribution."""
        found = [float(self.runner.requests[name].sampling_params.temperature or 0.0) for name in told.names]
        if all(value in (0.0, 1.0) for value in found):
            return None
        each = [value or 1.0 for value, count in zip(found, told.counts, strict=True) for _ in range(count + 1)]
        return torch.tensor(each, device=device)[:, None]


def _at_drafts(scores: torch.Tensor, drafted: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """Scores [drafted token] of the drafted tokens in the rows that judge them."""
    rows, first = [], 0
    for count in counts:
        rows.extend(range(first, first + count))
        first += count + 1
    where = torch.tensor(rows, dtype=torch.long, device=scores.device)
    return scores[where, drafted.to(scores.device).long()[: len(rows)].clamp_min(0)]


def _at_samples(scores: torch.Tensor, sampled: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """Scores [request, token] of the sampled tokens in the rows that they were drawn from."""
    width = sampled.shape[1]
    first = torch.tensor([0, *counts[:-1]], device=scores.device).cumsum(0) + torch.arange(len(counts), device=scores.device)
    rows = (first[:, None] + torch.arange(width, device=scores.device)).clamp_max(len(scores) - 1)
    return scores[rows, sampled.long().clamp(0, scores.shape[-1] - 1)]
