"""Decoding loop: prefill, then draft, verify, judge, commit until the text ends, the budget is spent, or it stops."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from specviz.engine import threads
from specviz.engine.clock import Stopwatch, Untimed
from specviz.engine.interfaces import Composition, Context, Draft, Round, Session, Target, TargetPass, Verdict
from specviz.engine.recorder import Pending, Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.engine.stop import why
from specviz.errors import ContextFull, OutOfMemory, SpecvizError
from specviz.trace.schema import Step

_LOG = logging.getLogger(__name__)
_NO_MEMORY = ("DefaultCPUAllocator", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


@dataclass
class Outcome:
    """How a run went, filled in while it goes. ``reason`` and ``message`` as in ``trace.End``."""

    output_ids: list[int] = field(default_factory=list)
    reason: str = "budget"
    message: str = ""
    prefill_ns: int = 0


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA's allocator has a class for it; the CPU's, and CUDA's libraries, only a sentence."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError | OutOfMemory):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def _said(draft: Draft, verdict: Verdict) -> list[int]:
    """What a round adds to the text: the path's tokens, as they are now, and the bonus."""
    tokens = draft.tree.host_tokens
    said = [verdict.replaced.get(node, tokens[node]) for node in verdict.path]
    return said if verdict.bonus is None else [*said, verdict.bonus]


@dataclass
class Decoding:
    """One run of a composition on a target, from the token ids ``prompt``: iterate :meth:`steps`, read ``outcome``."""

    target: Target
    composition: Composition
    prompt: Sequence[int]
    warp: Warp
    noise: Noise
    budget: int
    recorder: Recorder
    cancel: threading.Event = field(default_factory=threading.Event)
    ignore_eos: bool = False
    outcome: Outcome = field(default_factory=Outcome)

    def __post_init__(self) -> None:
        if not self.prompt:
            raise SpecvizError("The prompt is empty; give at least one token.")
        if len(self.prompt) + 1 > self.target.context_length:
            raise ContextFull(
                f"The prompt has {len(self.prompt)} tokens but {self.target.name} can see "
                f"{self.target.context_length}; shorten it."
            )
        self.ids = list(self.prompt)
        self._round = 0
        self._recording_ns = 0
        self._aside = Untimed(self.target.device)
        self._waiting: Pending | None = None

    def steps(self) -> Generator[Step, None, None]:
        """Decode, yielding each step as it is recorded. Whatever goes wrong ends the run and is told in ``outcome``."""
        session: Session | None = None
        try:
            capacity = min(self.target.context_length, len(self.prompt) + self.budget)
            session = self._open(capacity)
            self._prefill(session)
            yield from self._rounds(session)
        except Exception as error:  # the steps so far must survive a fault in any part, ours included
            self.note_fault(error)
            last = self._rescue()
            if last is not None:
                yield last
        finally:
            try:
                self.composition.controller.close()
            finally:
                if session is not None:
                    session.close()

    def _open(self, capacity: int) -> Session:
        """Only methods that probe ask a target whether it can."""
        made = self.composition
        if made.probe is None:
            return self.target.open(capacity, made.taps)
        return self.target.open(capacity, made.taps, made.probe)

    def _rescue(self) -> Step | None:
        """The step that was settled but not yet shown when something failed, if the device still gives it."""
        try:
            return self._finish()
        except Exception as error:  # as a rule the same fault again, which is told already
            _LOG.warning("The last step before the fault is lost: %s", error)
            return None

    def note_fault(self, error: Exception) -> None:
        """Note in ``outcome`` that this ended the run: memory, a sentence for the user, or a fault of the program."""
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

    def _context(self) -> Context:
        return Context(
            ids=self.ids,
            prompt_length=len(self.prompt),
            round=self._round,
            warp=self.warp,
            noise=self.noise,
            device=self.target.device,
            room=self.target.context_length - len(self.ids),
            story=self.recorder.story,
            aside=self._aside,
        )

    def _prefill(self, session: Session) -> None:
        started = time.perf_counter_ns()
        found: TargetPass | None = None
        if len(self.prompt) > 1:
            found = session.prefill(self.prompt[:-1])
        self.composition.controller.begin(self._context(), found)
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        self.outcome.prefill_ns = time.perf_counter_ns() - started - self._aside.spent

    def _rounds(self, session: Session) -> Iterator[Step]:
        """Rounds until done. On CUDA a step is made while the next pass runs, so it is yielded one round later."""
        deferred = self.target.device.type == "cuda"
        stop: str | None = None
        while stop is None and not self.cancel.is_set():
            threads.look()
            clock = Stopwatch(self.target.device, self._aside)
            clock.start(self._recording_ns)
            context = self._context()
            draft, scored = self._propose(session, context, clock)
            ready = self._finish()
            finished, cut, stop = self._settle(session, context, draft, scored, clock)
            self._waiting = self._capture(finished, cut, clock, session)
            if not deferred:
                ready = self._finish()
            if ready is not None:
                yield ready
            self._round += 1
        last = self._finish()
        limit = why(self.cancel)
        self.outcome.reason = stop or ("time_limit" if limit else "cancelled")
        if stop is None:
            self.outcome.message = limit
        if last is not None:
            yield last

    def _propose(self, session: Session, context: Context, clock: Stopwatch) -> tuple[Draft, TargetPass]:
        draft = self.composition.controller.draft(context)
        clock.mark("draft")
        scored = session.score(draft.tree)
        clock.mark("verify")
        return draft, scored

    def _settle(
        self, session: Session, context: Context, draft: Draft, scored: TargetPass, clock: Stopwatch
    ) -> tuple[Round, str | None, str | None]:
        """Judge, commit, and let the drafter learn. The drafter's learning is part of what drafting costs."""
        verdict = self.composition.acceptance.judge(draft, scored, context)
        clock.mark("judge")
        if self.composition.mending is not None:
            verdict = self.composition.mending.mend(session, draft, scored, verdict, context)
            clock.mark("verify")
        emitted, cut, stop = self._cut(_said(draft, verdict))
        # The last token said is the next round's root, which is not in the cache yet.
        session.keep((0, *verdict.path) if verdict.bonus is not None else (0, *verdict.path)[:-1])
        clock.mark("commit")
        finished = Round(context, draft, scored, verdict, emitted)
        self.composition.controller.observe(finished)
        clock.mark("draft")
        # A new list: what a drafter or a pending step saw of this round must not grow under it.
        self.ids = [*self.ids, *emitted]
        clock.stop()
        return finished, cut, stop

    def _cut(self, found: list[int]) -> tuple[list[int], str | None, str | None]:
        """(tokens that count, why the rest was cut off, why the run is over): end of sequence, budget, context."""
        left = self.budget - (len(self.ids) - len(self.prompt))
        room = self.target.context_length - len(self.ids)
        limit, why = (left, "budget") if left <= room else (room, "context")
        ends = [] if self.ignore_eos else [place + 1 for place, one in enumerate(found) if one in self.target.eos_ids]
        if ends and ends[0] <= limit:
            return found[: ends[0]], "eos" if ends[0] < len(found) else None, "eos"
        if len(found) >= limit:
            return found[:limit], why if len(found) > limit else None, why
        return found, None, None

    def _capture(self, finished: Round, cut: str | None, clock: Stopwatch, session: Session) -> Pending:
        started = time.perf_counter_ns()
        pending = self.recorder.capture(finished, cut, clock, session.padded(len(finished.draft.tree)))
        self._recording_ns = time.perf_counter_ns() - started
        return pending

    def _finish(self) -> Step | None:
        """Make the step that waits, if any; only then do its tokens count as output, so the two always agree.

        What recording costs is host time of the round in which it is spent.
        """
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return None
        started = time.perf_counter_ns()
        step = self.recorder.finish(waiting)
        self.outcome.output_ids += step.emitted
        self._recording_ns += time.perf_counter_ns() - started
        return step
