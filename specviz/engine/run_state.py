"""State of one run: committed tokens, and the operations of a round, which the decoding loops call in order.

The single loop and the batched loop differ only in the pass that scores trees.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from specviz.engine.clock import Stopwatch, Untimed
from specviz.engine.interfaces import Composition, Context, Draft, Round, RunCache, Target, TargetPass
from specviz.engine.recorder import Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.engine.stop import ProgressHook, Stop, heed, on_prefill_progress, stoppable
from specviz.errors import OutOfMemory, SpecvizError

_LOG = logging.getLogger(__name__)
_NO_MEMORY = ("DefaultCPUAllocator", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


@dataclass
class Outcome:
    """Result of a run, updated as it proceeds. ``reason`` and ``message`` are as in ``trace.End``."""

    output_ids: list[int] = field(default_factory=list)
    reason: str = "budget"
    message: str = ""
    prefill_ns: int = 0
    untimed: Untimed | None = None

    @property
    def captures(self) -> int:
        """Number of passes captured in this run."""
        return 0 if self.untimed is None else self.untimed.captures

    @property
    def capture_ns(self) -> int:
        """Nanoseconds spent on capturing, excluded from all other times."""
        return 0 if self.untimed is None else self.untimed.capturing


@dataclass(frozen=True)
class RoundResult:
    """Judged round before recording. ``cut``: reason why tokens were dropped, if any. ``stop``: reason why the run ends, if it
    does."""

    finished: Round
    cut: str | None
    stop: str | None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` means that memory ran out. Some CPU and CUDA libraries report this only in the message."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError | OutOfMemory):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def _ignore(*_: object) -> None:
    """No-op hook, for runs without progress or timing."""


@dataclass
class RunState:
    """One run from the token ids ``prompt``, round by round; ``outcome`` holds the result.

    The prompt has at least one token and leaves room for another in the target's context. ``progress`` receives the prefill
    progress of a long prompt: a sentence and the fraction done.
    """

    target: Target
    composition: Composition
    prompt: Sequence[int]
    warp: Warp
    noise: Noise
    budget: int
    recorder: Recorder
    cancel: Stop = field(default_factory=Stop)
    ignore_eos: bool = False
    progress: Callable[[str, float | None], None] = _ignore
    outcome: Outcome = field(default_factory=Outcome)

    def __post_init__(self) -> None:
        self.ids = list(self.prompt)
        self.round = 0
        self.outcome.output_ids = self.recorder.output_ids
        self.untimed = self.outcome.untimed = Untimed(self.target.device)

    def context(self, mark: Callable[[str], None] = _ignore) -> Context:
        """Return the context of this round. ``mark``: function that ends a phase of the round's clock."""
        room, ahead = self.target.context_length - len(self.ids), self.target.boundary - len(self.ids)
        return Context(
            ids=self.ids,
            prompt_length=len(self.prompt),
            round=self.round,
            warp=self.warp,
            noise=self.noise,
            device=self.target.device,
            max_depth=room if ahead < 0 else min(room, ahead + 1),
            record_notes=self.recorder.record_notes,
            untimed=self.untimed,
            mark=mark,
        )

    def prefill(self, cache: RunCache) -> None:
        """Prefill the cache and the drafter with the prompt except its last token.

        Raises Interrupted if the run is stopped between two chunks of a long prompt.
        """
        started = time.perf_counter_ns()
        with self.untimed.here(), stoppable(self.cancel):
            heed()
            with on_prefill_progress(self._progress_hook("Reading the prompt")):
                scored = cache.prefill(self.prompt[:-1]) if len(self.prompt) > 1 else None
            with on_prefill_progress(self._progress_hook("The drafter reads the prompt")):
                context = replace(self.context(), max_depth=self.target.context_length - len(self.ids))
                self.composition.controller.begin(context, scored)
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        self.outcome.prefill_ns = time.perf_counter_ns() - started - self.untimed.spent

    def _progress_hook(self, what: str) -> ProgressHook:
        def hook(done: int, total: int) -> None:
            self.progress(f"{what}: {done:,} of {total:,} tokens", done / total)

        return hook

    def stopped(self) -> None:
        """Record in ``outcome`` that the user or the time limit ended the run."""
        self.outcome.message = self.cancel.reason
        self.outcome.reason = "time_limit" if self.outcome.message else "cancelled"

    def commit_round(self, cache: RunCache, context: Context, draft: Draft, scored: TargetPass, clock: Stopwatch) -> RoundResult:
        """Judge, commit, and update the drafter, which counts as drafting time."""
        verdict = self.composition.acceptance.judge(draft, scored, context)
        clock.mark("judge")
        tokens = draft.tree.host_tokens
        path = [verdict.replaced.get(node, tokens[node]) for node in verdict.path]
        emitted, cut, stop = self._cut(path if verdict.bonus is None else [*path, verdict.bonus])
        # The last emitted token, the next root, is not in the cache yet.
        cache.keep((0, *verdict.path) if verdict.bonus is not None else (0, *verdict.path)[:-1])
        clock.mark("commit")
        finished = Round(context, draft, scored, verdict, emitted)
        self.composition.controller.observe(finished)
        clock.mark("draft")
        # Drafters and pending steps hold the old list, which must not grow.
        self.ids = [*self.ids, *emitted]
        self.round += 1
        clock.stop()
        return RoundResult(finished, cut, stop)

    def _cut(self, tokens: list[int]) -> tuple[list[int], str | None, str | None]:
        """Return the tokens kept, the reason for a cut, and the reason for a stop: end of sequence, budget or context."""
        left = self.budget - (len(self.ids) - len(self.prompt))
        room = self.target.context_length - len(self.ids)
        limit, reason = (left, "budget") if left <= room else (room, "context")
        ends = [] if self.ignore_eos else [place + 1 for place, token in enumerate(tokens) if token in self.target.eos_ids]
        if ends and ends[0] <= limit:
            return tokens[: ends[0]], "eos" if ends[0] < len(tokens) else None, "eos"
        if len(tokens) >= limit:
            return tokens[:limit], reason if len(tokens) > limit else None, reason
        return tokens, None, None

    def note_fault(self, error: Exception) -> None:
        """Record in ``outcome`` that ``error`` ended the run: out of memory, a message for the user, or a bug."""
        if is_out_of_memory(error):
            self.outcome.reason = "out_of_memory"
            self.outcome.message = (
                f"{self.target.device.type.upper()} memory ran out; use a smaller tree, fewer new tokens or a smaller "
                "model. The steps so far are kept."
            )
            return
        self.outcome.reason = "error"
        if isinstance(error, SpecvizError):
            self.outcome.message = str(error)
            return
        self.outcome.message = f"{type(error).__name__}: {error}"
        _LOG.error("A run ended by a fault of the program", exc_info=error)
