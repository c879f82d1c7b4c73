"""Thread that makes trace files of rounds: a file a request, a line as soon as a step is known."""

from __future__ import annotations

import logging
import math
import queue
import re
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import torch

import specviz
from specviz.engines.chain import ChainRound, ChainSteps, NumberedTokens, TokenTexts, by_name
from specviz.trace.metrics import summarise
from specviz.trace.notes.models import ServedNote
from specviz.trace.schema import MAX_STEPS, End, Nanoseconds, Run, Sampling
from specviz.trace.wire import TraceWriter

Mark = Any
"""A moment: nanoseconds of the host's clock, or a CUDA event."""
MOST_FILES = 1000
"""Files that one process writes; requests after them are served and not recorded."""
_LOG = logging.getLogger("vllm.specviz")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
FIRST = "The pass that ends reading the prompt writes the first token: step 1 holds its time."
SHARED = "Requests were served together: a step's times are those of the round that they share."
TITLES = {
    "ngram": "N-gram", "ngram_gpu": "N-gram", "suffix": "Suffix decoding", "draft_model": "Draft model", "eagle": "EAGLE",
    "eagle3": "EAGLE-3", "medusa": "Medusa", "mtp": "Multi-token prediction", "custom_class": "Custom proposer",
}  # fmt: skip


def between(start: Mark, end: Mark) -> int:
    """Nanoseconds from one moment to another, both of one kind."""
    if isinstance(start, int):
        return max(0, int(end) - start)
    end.synchronize()
    return max(0, int(start.elapsed_time(end) * 1e6))


@dataclass
class Round:
    """One pass of the target over a batch of requests. Rows of tensors follow ``names``, ``counts`` drafted tokens each."""

    begun: Mark
    draft: tuple[Mark, Mark] | None
    idle_since: Mark | None
    scored: Mark = 0
    judged: Mark = 0
    ended: Mark = 0
    scheduled: int = 0
    next_draft: tuple[Mark, Mark] | None = None
    names: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    discarded: list[bool] = field(default_factory=list)
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    ready: Any = None

    def keep(self, name: str, values: torch.Tensor) -> None:
        """A tensor that is read once the round is over; a copy, since vLLM uses its buffers again."""
        self.kept[name] = values.detach().clone()

    def to_host(self, device: torch.device) -> None:
        """Start the copies to the host; nobody waits for them here."""
        if device.type == "cuda":
            self.kept = {name: values.to("cpu", non_blocking=True) for name, values in self.kept.items()}
            self.ready = torch.cuda.Event()
            self.ready.record()


class Writer:
    """Makes files in ``folder`` of what it is handed, in its own thread."""

    def __init__(self, folder: str, config: Any) -> None:
        self._folder, self._config = Path(folder), config
        self._folder.mkdir(parents=True, exist_ok=True)
        self._queue: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._open: dict[str, _File] = {}
        self._files = 0
        self._text: TokenTexts | None = None
        threading.Thread(target=self._work, name="specviz", daemon=True).start()

    def start(self, name: str, prompt: list[int], params: Any) -> None:
        """A request came."""
        self._queue.put(("start", (name, prompt, params)))

    def take(self, told: Round) -> None:
        """A round is over."""
        self._queue.put(("round", told))

    def finish(self, name: str) -> None:
        """A request is over."""
        self._queue.put(("finish", name))

    def _work(self) -> None:
        try:
            while True:
                kind, told = self._queue.get()
                {"start": self._begin, "round": self._steps, "finish": self._end}[kind](told)
        except Exception:
            _LOG.exception("specviz stopped writing traces; the server goes on.")

    def _texts(self) -> TokenTexts:
        if self._text is None:
            model = self._config.model_config
            if model.skip_tokenizer_init:
                self._text = NumberedTokens()
            else:
                from vllm.tokenizers import cached_tokenizer_from_config

                from specviz.models.text.text import TokenizerText

                self._text = TokenizerText(cached_tokenizer_from_config(model), model.model, int(model.max_model_len))
        return self._text

    def _begin(self, told: tuple[str, list[int], Any]) -> None:
        name, prompt, params = told
        if self._files >= MOST_FILES or not prompt:
            if self._files == MOST_FILES:
                _LOG.warning("specviz has written %d traces and records no further requests.", MOST_FILES)
                self._files += 1
            return
        self._files += 1
        text = self._texts()
        place = self._folder / f"{_UNSAFE.sub('_', name)[:120]}.spectrace.jsonl"
        file = place.open("w", encoding="utf-8")
        self._open[name] = _File(file, text, prompt, params, run_line(self._config, text, prompt, params))

    def _steps(self, told: Round) -> None:
        if told.ready is not None:
            told.ready.synchronize()
        host = {name: values.tolist() for name, values in told.kept.items()}
        spent = Nanoseconds(
            draft=0 if told.draft is None else between(*told.draft),
            verify=between(told.begun, told.scored),
            judge=between(told.scored, told.judged),
            host=0 if told.idle_since is None else between(told.idle_since, told.begun),
        )
        row = flat = 0
        for place, (name, count) in enumerate(zip(told.names, told.counts, strict=True)):
            file = self._open.get(name)
            if file is not None and not told.discarded[place]:
                file.add(_of_request(host, place, row, flat, count), spent, len(told.names), told.scheduled)
            row, flat = row + count + 1, flat + count

    def _end(self, name: str) -> None:
        file = self._open.pop(name, None)
        if file is not None:
            file.close()


def _of_request(host: dict[str, Any], place: int, row: int, flat: int, count: int) -> dict[str, Any]:
    """A round's numbers for one request: its drafted tokens, what was sampled, and their scores."""
    return {
        "drafted": host.get("drafted", [])[flat : flat + count],
        "draft_scores": host.get("draft_scores", [])[flat : flat + count],
        "q": host["q"][flat : flat + count] if "q" in host else None,
        "sampled": [token for token in host["sampled"][place][: count + 1] if token >= 0],
        "sampled_scores": host["sampled_scores"][place],
        "log_norm": host["log_norm"][row : row + count + 1],
        "top": list(zip(host["top_ids"][row : row + count + 1], host["top"][row : row + count + 1], strict=True)),
    }


class _File:
    """One request's trace as it grows."""

    def __init__(self, out: TextIO, text: TokenTexts, prompt: list[int], params: Any, run: Run) -> None:
        self._out, self._params, self._prompt = out, params, prompt
        self._writer = TraceWriter(out)
        self._ends = _end_ids(params)
        self._steps = ChainSteps(text, prompt, self._ends)
        self._most = int(params.max_tokens or 1 << 30)
        self._over = ""
        self._began = time.perf_counter_ns()
        self._prefill = 0
        self._batch = 1
        self._run = run
        self._writer.add(run)

    def add(self, told: dict[str, Any], spent: Nanoseconds, batch: int, scheduled: int) -> None:
        """What a round did for this request."""
        if self._over or not told["sampled"] or len(self._steps.steps) >= MAX_STEPS:
            return
        if not self._steps.steps:
            spent = Nanoseconds(verify=spent.verify, judge=spent.judge)
            self._prefill = max(0, time.perf_counter_ns() - self._began - spent.total)
        sampled, drafted = told["sampled"], told["drafted"]
        accepted = max(0, len(sampled) - 1) if drafted else 0
        emitted, self._over = self._whole(sampled)
        norms = told["log_norm"]
        p = [_probability(score, norm) for score, norm in zip(told["draft_scores"], norms, strict=False)]
        last = len(emitted) - 1
        greedy = not float(self._params.temperature or 0.0)
        told_round = ChainRound(
            drafted, emitted, spent,
            rule="greedy" if greedy else "ratio",
            q=[min(1.0, max(0.0, value)) for value in told["q"]] if told["q"] is not None else (),
            p=p,
            bonus_p=_probability(told["sampled_scores"][last], norms[last]),
            top=[
                [(token, _probability(score, norm)) for token, score in zip(ids, scores, strict=True)]
                for (ids, scores), norm in zip(told["top"], norms, strict=True)
            ],
            cut=self._over or None,
            accepted=accepted,
            certain=not greedy and told["q"] is None,
            padded=scheduled,
            notes=(ServedNote(batch, 0, len(drafted)).to_note(),) if batch > 1 else (),
        )  # fmt: skip
        self._batch = max(self._batch, batch)
        self._writer.add(self._steps.add(told_round))

    def _whole(self, sampled: list[int]) -> tuple[list[int], str]:
        """What of the round's tokens counts, and why the text is over: as vLLM's scheduler decides it."""
        left = self._most - len(self._steps.output)
        for place, token in enumerate(sampled[:left]):
            if token in self._ends and len(self._steps.output) + place + 1 >= int(self._params.min_tokens or 0):
                return sampled[: place + 1], "eos"
        return sampled[:left], "budget" if len(sampled) >= left else ""

    def close(self) -> None:
        """The end line. A request that ended otherwise than by its own tokens was stopped: by a client, or a stop text."""
        ids, steps = self._steps.output, self._steps.steps
        reason = self._over or "cancelled"
        message = f"{SHARED} Up to {self._batch} at once." if self._batch > 1 else ""
        self._writer.add(
            End(
                reason=reason,
                output_ids=tuple(ids),
                text=self._steps.text_of(ids),
                prefill_ns=self._prefill,
                metrics=summarise(steps, reason, self._prefill),
                message=message,
            )
        )
        self._out.close()


def _end_ids(params: Any) -> frozenset[int]:
    """Tokens that end a text: vLLM's scheduler stops at them."""
    if params.ignore_eos:
        return frozenset(params.stop_token_ids or ())
    return frozenset(params.all_stop_token_ids or params.stop_token_ids or ())


def _probability(score: float, log_norm: float) -> float:
    return min(1.0, math.exp(min(0.0, score - log_norm)))


def run_line(config: Any, text: TokenTexts, prompt: list[int], params: Any) -> Run:
    """What was asked of vLLM: ``config`` is its own, ``params`` the request's sampling parameters."""
    import vllm

    speculative = config.speculative_config
    method = "" if speculative is None else str(speculative.method)
    settings: dict[str, object] = {
        "tensor_parallel": config.parallel_config.tensor_parallel_size,
        "pipeline_parallel": config.parallel_config.pipeline_parallel_size,
    }
    for name in ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"):
        if speculative is not None:
            settings[name] = getattr(speculative, name, None)
    drafter = getattr(speculative, "model", None) or ""
    pieces = text.pieces([], prompt)
    warped = (params.top_p or 1.0) < 1 or (params.top_k or 0) > 0 or (params.min_p or 0) > 0
    return Run(
        modality="text",
        target=_short(config.model_config.model),
        method=f"vllm_{method or 'autoregressive'}",
        title=f"{TITLES.get(method, method or 'Autoregressive')} in vLLM",
        exactness="exact",
        parameters=by_name(settings),
        sampling=Sampling(
            float(params.temperature or 0.0), max(0, int(params.top_k or 0)), float(params.top_p or 1.0), int(params.seed or 0)
        ),
        device=str(config.device_config.device_type),
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        tier="eager" if config.model_config.enforce_eager else "compiled",
        prompt="".join(pieces),
        prompt_pieces=pieces,
        max_new_tokens=min(1_000_000, int(params.max_tokens or 1_000_000)),
        draft="" if drafter in ("", "ngram", "suffix", method) else _short(drafter),
        libraries={"specviz": specviz.__version__, "vllm": vllm.__version__, "torch": torch.__version__},
        recorded_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        warnings=(FIRST, *(("p is shown before top-k, top-p and min-p.",) if warped else ())),
    )


def _short(name: str) -> str:
    """A hub's name, or the last part of a folder's path."""
    return Path(name).name if Path(name).is_absolute() else name[:1024]
