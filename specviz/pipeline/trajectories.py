"""Earlier trajectories of a prompt, decoded before a run for what its drafter learns from them.

Rows of one batch decode several in little more time than one takes, as a pass costs by the weights that it reads.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from specviz.engine.batch_cache import MOST_ROWS, shared
from specviz.engine.batch_loop import BatchDecoding, BatchRow
from specviz.engine.loop import Decoding
from specviz.engine.run_state import Outcome
from specviz.engine.stop import Stop, why
from specviz.models.hub.cache_dir import silent
from specviz.pipeline.prepared import Prepared, Progress
from specviz.targets.text import TextTarget
from specviz.targets.text_rows import TextRows

LONGEST_PROMPT = 512
"""Tokens of a prompt that rows may read, each in one piece: a longer one is read in pieces, between which a run can end."""
Rounds = Generator[object, None, None]
_CUT = frozenset({"cancelled", "time_limit"})


def decode(prepared: Prepared, cancel: threading.Event, progress: Progress = silent) -> str:
    """Decode the trajectories that the request's method learns from, if it does.

    No run has their noise, whatever its seed: a run must neither be judged by numbers that its drafter has seen, nor find its
    own text learned by heart. They may take half of a time limit. Returns a warning if that cut them short, or "".
    """
    count = getattr(prepared.request.parameters, "earlier_trajectories", 0)
    outcomes: list[Outcome] = []
    rows = MOST_ROWS if _can_share(prepared) else 1
    for first in range(1, count + 1, rows):
        numbers = range(first, min(first + rows, count + 1))
        rounds, running = (_together if len(numbers) > 1 else _alone)(prepared, numbers, cancel)
        outcomes += running
        with closing(rounds):
            cut = any(_halfway(cancel) for _ in _told(rounds, numbers, running, count, prepared.budget, progress))
        if cut or _halfway(cancel) or any(outcome.reason in _CUT for outcome in running):
            break
    complete = sum(outcome.reason not in _CUT for outcome in outcomes)
    if complete == count or (cancel.is_set() and not why(cancel)):
        return ""
    return f"{complete} of {count} earlier trajectories fitted into half the time."


def _can_share(prepared: Prepared) -> bool:
    """Whether rows of one cache can decode this prompt."""
    return isinstance(prepared.target, TextTarget) and len(prepared.prompt_ids) <= LONGEST_PROMPT


def _alone(prepared: Prepared, numbers: Sequence[int], cancel: threading.Event) -> tuple[Rounds, list[Outcome]]:
    """One trajectory with a session of its own: its rounds, and its outcome."""
    decoding = prepared.decoding(prepared.compose(), prepared.request.seed, "off", cancel, numbers[0])
    return _whole_or_stopped(decoding), [decoding.outcome]


def _whole_or_stopped(decoding: Decoding) -> Rounds:
    """Its steps. A caller that does not want all of them has stopped it, as a batch does for its rows."""
    whole = False
    try:
        yield from decoding.steps()
        whole = True
    finally:
        if not whole:
            decoding.stopped()


def _together(prepared: Prepared, numbers: Sequence[int], cancel: threading.Event) -> tuple[Rounds, list[Outcome]]:
    """Several as rows of a batch: its rounds, and their outcomes. Trees are sized by a row's part of a pass."""
    rows = []
    for number in numbers:
        composition = prepared.compose(cost_curve=lambda: shared(prepared.parts.cost_curve(), len(numbers)))
        rows.append(BatchRow.of(prepared.decoding(composition, prepared.request.seed, "off", cancel, number)))
    capacity = min(prepared.target.context_length, len(prepared.prompt_ids) + prepared.budget)
    taps = sorted({tap for row in rows for tap in row.composition.hidden_state_layers})
    batch = TextRows(prepared.target, [capacity] * len(rows), taps)
    return BatchDecoding(rows, batch).rounds(), [row.outcome for row in rows]


def _told(
    rounds: Iterator[object], numbers: Sequence[int], outcomes: Sequence[Outcome], count: int, budget: int, progress: Progress
) -> Iterator[None]:
    """The rounds; ``progress`` hears which trajectories they are of, and how many of their tokens there are."""
    several = len(numbers) > 1
    name = f"Earlier tries {numbers[0]} to {numbers[-1]} of {count}" if several else f"Earlier try {numbers[0]} of {count}"
    progress(name, (numbers[0] - 1) / count)
    for _ in rounds:
        yield
        written = sum(len(outcome.output_ids) for outcome in outcomes) // len(outcomes)
        share = (numbers[0] - 1 + len(numbers) * min(1.0, written / budget)) / count
        each = " each" if several else ""
        progress(f"{name}: {written:,} of at most {budget:,} tokens{each}", share)


def _halfway(cancel: threading.Event) -> bool:
    """Whether what comes before the run itself has to end."""
    return cancel.halfway() if isinstance(cancel, Stop) else cancel.is_set()
