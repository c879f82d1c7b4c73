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
        for name in _WRAPPED:
            _wrap(runner, name, folder)


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


_WRAPPED: dict[str, tuple[str, str]] = {
    "initialize_kv_cache": ("", ""),  # what writes the traces loads a tokenizer, while the server still warms up
    "execute_model": ("begin", ""),
    "_sample": ("scored", "sampled"),
    "_get_spec_decode_draft_probs": ("", "drafted"),
    "propose_draft_token_ids": ("draft_begins", "draft_ends"),
    "sample_tokens": ("", "end"),
}
"""Methods of vLLM's model runner that a round goes through: what the listener hears of the arguments, and of the answer."""


def _wrap(runner: Any, name: str, folder: str) -> None:
    """Let the listener hear of a method. vLLM's answer stays what it was."""
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
    """Gathers the rounds of one model runner. ``active`` is False in workers that have nothing to tell."""

    def __init__(self, runner: Any, folder: str) -> None:
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group

        self.runner = runner
        self.active = get_pp_group().is_last_rank and get_tp_group().is_first_rank
        self._sender: Sender
        self._scaled: torch.Tensor
        self.hear("_open", folder)
        self._round: Round | None = None
        self._draft: tuple[Mark, Mark] | None = None
        self._drafting: Mark | None = None
        self._ended: Mark | None = None
        self._known: set[str] = set()

    def hear(self, what: str, *told: Any, **named: Any) -> None:
        """Call this method of ours. The first fault is logged, and ends the recording, never the server."""
        if not self.active or not what:
            return
        try:
            getattr(self, what)(*told, **named)
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

    def begin(self, scheduler_output: Any, *given: Any, **named: Any) -> None:
        """A round starts; requests that ended since the last one are over."""
        for name in self._known.intersection(scheduler_output.finished_req_ids):
            self._known.remove(name)
            self._sender.put("finish", name)
        self._round = None
        if scheduler_output.total_num_scheduled_tokens:
            scheduled = int(scheduler_output.total_num_scheduled_tokens)
            self._round = Round(scheduled, begun=self._mark(), draft=self._draft, idle_since=self._ended)

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
        for name in [name for name in told.names if name not in self._known]:
            self._known.add(name)
            request = self.runner.requests[name]
            self._sender.start(name, list(request.prompt_token_ids or ()), request.sampling_params)
        scaled = self._scaled = logits.float() / self._temperatures(told, logits.device)
        told.keep("log_norm", torch.logsumexp(scaled, -1))
        best = scaled.topk(TOP, -1)
        told.keep("top", best.values)
        told.keep("top_ids", best.indices)
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
        del self._scaled

    def draft_begins(self, *given: Any, **named: Any) -> None:
        """The drafter starts, for the next round."""
        self._drafting = self._mark()

    def draft_ends(self, answer: Any) -> None:
        """The drafter is done."""
        if self._drafting is not None and self._round is not None:
            self._round.next_draft = (self._drafting, self._mark())

    def end(self, answer: Any) -> None:
        """The round is over: let the writer have it."""
        told, self._round = self._round, None
        if told is None or not told.names or "sampled" not in told.kept:
            return
        self._draft = told.next_draft
        told.ended = self._ended = self._mark()
        told.to_host(self.runner.device)
        self._sender.put("round", told)

    def _temperatures(self, told: Round, device: torch.device) -> torch.Tensor | float:
        """Each row's temperature [row, 1], or 1 for all where they are greedy or 1: p is that of the warped distribution."""
        found = [float(self.runner.requests[name].sampling_params.temperature or 1.0) for name in told.names]
        if set(found) <= {1.0}:
            return 1.0
        each = [value for value, count in zip(found, told.counts, strict=True) for _ in range(count + 1)]
        return torch.tensor(each, device=device)[:, None]


def _at_drafts(scores: torch.Tensor, drafted: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """Scores [drafted token] of the drafted tokens in the rows that judge them."""
    rows, first = list[int](), 0
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
