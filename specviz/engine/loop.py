"""Decoding loop: prefill, then draft, verify, judge and commit until end of sequence, budget, context limit or a stop."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator

from specviz.engine import threads
from specviz.engine.clock import Stopwatch
from specviz.engine.interfaces import Session
from specviz.engine.run_state import RoundResult, RunState
from specviz.engine.stop import Interrupted
from specviz.trace.schema import Step

_LOG = logging.getLogger(__name__)


class Decoding(RunState):
    """One run with its own session. Iterate :meth:`steps`, then read ``outcome``."""

    def steps(self) -> Generator[Step, None, None]:
        """Decode, yielding each recorded step. A fault ends the run and is reported in ``outcome``."""
        session: Session | None = None
        # On CUDA a step is recorded during the next round's pass, so it is yielded one round later.
        self.recorder.deferred = self.target.device.type == "cuda"
        try:
            composition, capacity = self.composition, min(self.target.context_length, len(self.prompt) + self.budget)
            if composition.opener is None:
                session = self.target.open(capacity, composition.hidden_state_layers)
            else:
                session = composition.opener.open(self.target, capacity, composition.hidden_state_layers)
            self.prefill(session)
            yield from self._rounds(session)
        except Interrupted:
            self.stopped()
        except Exception as error:  # the steps so far survive a fault in any component
            self.note_fault(error)
            try:
                last = self.recorder.pop()
            except Exception as again:  # usually the same fault
                _LOG.warning("The last step before the fault is lost: %s", again)
            else:
                if last is not None:
                    yield last
        finally:
            try:
                self.composition.controller.close()
            finally:
                if session is not None:
                    session.close()

    def _rounds(self, session: Session) -> Iterator[Step]:
        stop: str | None = None
        recorder = self.recorder
        while stop is None and not self.cancel.is_set():
            threads.adjust()
            clock = Stopwatch(self.target.device, self.untimed)
            with self.untimed.here():
                settled = self._round(session, clock)
            stop, earlier = settled.stop, recorder.pop()
            nodes = len(settled.finished.draft.tree)
            now = recorder.push(settled.finished, settled.cut, clock, session.padded(nodes))
            for step in (earlier, now):
                if step is not None:
                    recorder.report_times(step, self.composition.learn)
                    yield step
        last = self.recorder.pop()
        if stop is None:
            self.stopped()
        else:
            self.outcome.reason = stop
        if last is not None:
            yield last

    def _round(self, session: Session, clock: Stopwatch) -> RoundResult:
        clock.start(self.recorder.spent_ns)
        context = self.context(clock.mark)
        draft = self.composition.controller.draft(context)
        clock.mark("draft")
        scored = session.score(draft.tree)
        clock.mark("verify")
        self.recorder.make()
        return self.commit_round(session, context, draft, scored, clock)
