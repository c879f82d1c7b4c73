"""Earlier trajectories of a prompt, decoded before a run so that its drafter learns from them.

Several rows of one batch take little more time than one, since a pass's cost is dominated by reading the weights.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, Protocol

from specviz.engine.batch_cache import MOST_ROWS, shared
from specviz.engine.batch_loop import BatchDecoding, BatchRow
from specviz.engine.interfaces import Composition, Target
from specviz.engine.loop import Decoding
from specviz.engine.run_state import Outcome
from specviz.engine.stop import Stop, stop_reason
from specviz.methods.resources import MethodResources
from specviz.targets.text import TextTarget
from specviz.targets.text_rows import TextRows

LONGEST_PROMPT = 512
"""Maximum number of prompt tokens for decoding in a batch: each row is prefilled in one chunk, and a run can stop only between
chunks."""
CUT = frozenset({"cancelled", "time_limit"})


class PreparedRun(Protocol):
    """Interface of a prepared request for its method."""

    @property
    def request(self) -> Any: ...

    @property
    def target(self) -> Target: ...

    @property
    def prompt_ids(self) -> list[int]: ...

    @property
    def budget(self) -> int: ...

    @property
    def resources(self) -> MethodResources: ...

    def compose(self, name: str | None = None, **changed: Any) -> Composition: ...

    def decoding(
        self, composition: Composition, seed: int, record: str, cancel: threading.Event, trajectory: int = 0
    ) -> Decoding: ...


def decode(run: PreparedRun, cancel: threading.Event, progress: Callable[[str, float | None], None]) -> str:
    """Decode the run's ``earlier_trajectories``, within half of the time limit.

    Their noise differs from every run's, whatever its seed. Otherwise a run would be verified with random numbers from which its
    drafter has learnt, or find its own text in the store. Returns a warning if the time did not suffice for all, or "".
    """
    count = run.request.parameters.earlier_trajectories
    outcomes: list[Outcome] = []
    together = isinstance(run.target, TextTarget) and len(run.prompt_ids) <= LONGEST_PROMPT
    rows = MOST_ROWS if together else 1
    for first in range(1, count + 1, rows):
        numbers = range(first, min(first + rows, count + 1))
        several = len(numbers) > 1
        rounds, running = (_batch if several else _alone)(run, numbers, cancel)
        outcomes += running
        name = f"Earlier tries {first} to {numbers[-1]} of {count}" if several else f"Earlier try {first} of {count}"
        progress(name, (first - 1) / count)
        with closing(rounds):
            for _ in rounds:
                if _half_spent(cancel):
                    break
                tokens = sum(len(outcome.output_ids) for outcome in running) // len(running)
                share = (first - 1 + len(numbers) * min(1.0, tokens / run.budget)) / count
                progress(f"{name}: {tokens:,} of at most {run.budget:,} tokens{' each' if several else ''}", share)
        if _half_spent(cancel) or any(outcome.reason in CUT for outcome in running):
            break
    complete = sum(outcome.reason not in CUT for outcome in outcomes)
    if complete == count or (cancel.is_set() and not stop_reason(cancel)):
        return ""
    return f"{complete} of {count} earlier trajectories fitted into half the time."


def _alone(run: PreparedRun, numbers: Sequence[int], cancel: threading.Event) -> tuple[Generator[object], list[Outcome]]:
    """Return rounds and outcome of one trajectory with its own session. Closing the rounds early stops it."""
    decoding = run.decoding(run.compose(), run.request.seed, "off", cancel, numbers[0])

    def rounds() -> Generator[object]:
        whole = False
        try:
            yield from decoding.steps()
            whole = True
        finally:
            if not whole:
                decoding.stopped()

    return rounds(), [decoding.outcome]


def _batch(run: PreparedRun, numbers: Sequence[int], cancel: threading.Event) -> tuple[Generator[object], list[Outcome]]:
    """Return rounds and outcomes of several trajectories as rows of a batch. Trees are sized by a row's share of a pass's
    cost."""
    rows = []
    for number in numbers:
        composition = run.compose(cost_curve=lambda: shared(run.resources.cost_curve(), len(numbers)))
        rows.append(BatchRow.of(run.decoding(composition, run.request.seed, "off", cancel, number)))
    capacity = min(run.target.context_length, len(run.prompt_ids) + run.budget)
    taps = sorted({tap for row in rows for tap in row.composition.hidden_state_layers})
    batch = TextRows(run.target, [capacity] * len(rows), taps)
    return BatchDecoding(rows, batch).rounds(), [row.outcome for row in rows]


def _half_spent(cancel: threading.Event) -> bool:
    return cancel.halfway() if isinstance(cancel, Stop) else cancel.is_set()
