"""Rounds on their way out of vLLM: plain numbers, sent to a process of their own that writes the traces (:mod:`.scribe`).

In vLLM's process nothing is made of them, so that its interpreter is not held up: a thread waits for a GPU's copies, packs the
numbers and puts them into the other process' input. What is still there when vLLM is killed, the other process writes.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import IO, Any, cast

import numpy as np
import torch

from specviz.engines.chain import by_name
from specviz.engines.vllm_plugin.framing import send

Mark = Any
"""A moment: nanoseconds of the host's clock, or a CUDA event."""
MOST_WAITING = 20_000
"""Rounds that may wait to be sent; while there are more, requests that come are served and not recorded."""
CLOSING_SECONDS = 10.0
_LOG = logging.getLogger("vllm.specviz")


def between(start: Mark, end: Mark) -> int:
    """Nanoseconds from one moment to another, both of one kind."""
    if isinstance(start, int):
        return max(0, int(end) - start)
    end.synchronize()
    return max(0, int(start.elapsed_time(end) * 1e6))


@dataclass
class Round:
    """One pass of the target over a batch of requests. Rows of tensors follow ``names``, ``counts`` drafted tokens each."""

    scheduled: int
    begun: Mark
    draft: tuple[Mark, Mark] | None
    idle_since: Mark | None
    scored: Mark = 0
    judged: Mark = 0
    ended: Mark = 0
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

    def plain(self) -> tuple[list[Any], dict[str, np.ndarray]]:
        """What the other process gets: names, counts, discarded, times in ns, rows of the pass; and the arrays by name."""
        if self.ready is not None:
            self.ready.synchronize()
        times = (
            0 if self.draft is None else between(*self.draft),
            between(self.begun, self.scored),
            between(self.scored, self.judged),
            0 if self.idle_since is None else between(self.idle_since, self.begun),
        )
        arrays = {name: (kept.float() if kept.dtype.is_floating_point else kept).numpy() for name, kept in self.kept.items()}
        return [self.names, self.counts, self.discarded, times, self.scheduled], arrays


class Sender:
    """The other process, and the thread that feeds it. ``config`` is vLLM's own."""

    def __init__(self, folder: str, config: Any) -> None:
        os.makedirs(folder, exist_ok=True)
        self._queue: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self._full = False
        command = [sys.executable, "-m", "specviz.engines.vllm_plugin.scribe", folder]
        # A session of its own: who ends vLLM, by Ctrl-C or by its process group, leaves it the time to write what it has.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self.put("server", settings_of(config))
        self._thread = threading.Thread(target=self._work, name="specviz", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def start(self, name: str, prompt: list[int], params: Any) -> None:
        """A request came."""
        if self._queue.qsize() > MOST_WAITING:
            if not self._full:
                self._full = True
                _LOG.warning("specviz is behind by %d rounds; requests that come meanwhile are not recorded.", MOST_WAITING)
            return
        self.put("start", (name, prompt, asked_of(params)))

    def put(self, kind: str, content: Any) -> None:
        """Send a message of this kind (see :mod:`.scribe`); a round is made plain by the thread."""
        self._queue.put((kind, content))

    def close(self) -> None:
        """Send what waits, and wait until it is written."""
        self._queue.put(None)
        self._thread.join(CLOSING_SECONDS)
        try:
            self._process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            _LOG.warning("specviz still writes traces; it ends by itself.")

    def _work(self) -> None:
        out = cast(IO[bytes], self._process.stdin)
        try:
            while (told := self._queue.get()) is not None:
                kind, content = told
                send(out, kind, *(content.plain() if isinstance(content, Round) else (content,)))
            out.close()
        except Exception:
            _LOG.exception("specviz stopped recording; the server goes on.")
            while self._queue.get() is not None:
                pass  # what nobody writes is not kept either


def asked_of(params: Any) -> dict[str, Any]:
    """A request's sampling parameters as plain values; ``ends`` are tokens that end its text: vLLM's scheduler stops at them."""
    ends = params.stop_token_ids if params.ignore_eos else params.all_stop_token_ids or params.stop_token_ids
    return {
        "temperature": float(params.temperature or 0.0),
        "top_k": max(0, int(params.top_k or 0)),
        "top_p": float(params.top_p or 1.0),
        "min_p": float(params.min_p or 0.0),
        "seed": int(params.seed or 0),
        "max_tokens": int(params.max_tokens or 0),
        "min_tokens": int(params.min_tokens or 0),
        "ends": sorted(ends or ()),
    }


def settings_of(config: Any) -> dict[str, Any]:
    """What a trace says of the server, and how its tokenizer is found, as plain values."""
    import vllm

    speculative, model = config.speculative_config, config.model_config
    parallel, lengths = config.parallel_config, ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
    parameters = {"tensor_parallel": parallel.tensor_parallel_size, "pipeline_parallel": parallel.pipeline_parallel_size}
    parameters |= {name: getattr(speculative, name, None) for name in lengths}
    tokenizer = None
    if not model.skip_tokenizer_init:
        names = ("tokenizer", "runner_type", "tokenizer_mode", "trust_remote_code")
        tokenizer = {name: getattr(model, name) for name in names} | {"revision": model.tokenizer_revision}
    return {
        "model": str(model.model),
        "method": "" if speculative is None else str(speculative.method),
        "drafter": str(getattr(speculative, "model", None) or ""),
        "parameters": by_name(parameters),
        "device": str(config.device_config.device_type),
        "dtype": str(model.dtype).removeprefix("torch."),
        "tier": "eager" if model.enforce_eager else "compiled",
        "tokenizer": tokenizer,
        "max_model_len": int(getattr(model, "max_model_len", 0) or 0),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
    }
