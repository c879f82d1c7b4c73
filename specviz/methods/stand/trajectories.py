"""Earlier trajectories: decodings of the prompt before a run, from which the drafter learns.

A batch takes little more time than a single trajectory, because reading the weights dominates the cost of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

from specviz.engine.batch_cache import MOST_ROWS, shared
from specviz.engine.batch_loop import BatchDecoding
from specviz.engine.interfaces import Outcome
from specviz.engine.stop import Stop
from specviz.targets.text import TextTarget
from specviz.targets.text_rows import TextRows

LONGEST_PROMPT = 512
"""Maximum prompt length for a batch, in tokens. A row is prefilled in one chunk, and runs stop only between chunks."""
WHOLE = frozenset({"eos", "budget", "context"})


def decode(run: Any, cancel: Stop, progress: Callable[[str, float | None], None]) -> str:
    """Decode the ``earlier_trajectories`` of the prepared ``run`` within half of the time limit.

    The noise of trajectories differs from the noise of runs with any seed. Otherwise the drafter would learn from the random
    numbers that verify the run, or find the text of the run in the store. Returns a warning if some failed or there was not
    enough time for all, else "".
    """
    count, complete = run.request.parameters.earlier_trajectories, 0
    target = run.target
    together = (
        isinstance(target, TextTarget)
        and run.resources.picture is None
        and len(run.prompt_ids) <= LONGEST_PROMPT
        and not target.spread
        and not 0 < target.boundary < len(run.prompt_ids) + run.budget
    )
    rows = MOST_ROWS if together else 1
    for first in range(1, count + 1, rows):
        numbers = range(first, min(first + rows, count + 1))
        several, late = len(numbers) > 1, False
        rounds, running = (_batch if several else _alone)(run, numbers, cancel)
        name = f"Earlier tries {first} to {numbers[-1]} of {count}" if several else f"Earlier try {first} of {count}"
        progress(name, (first - 1) / count)
        with closing(rounds):
            for _ in rounds:
                if late := cancel.halfway():
                    break
                tokens = sum(len(outcome.output_ids) for outcome in running) // len(running)
                share = (first - 1 + len(numbers) * min(1.0, tokens / run.budget)) / count
                progress(f"{name}: {tokens:,} of at most {run.budget:,} tokens{' each' if several else ''}", share)
        whole = sum(outcome.reason in WHOLE for outcome in running)
        complete += 0 if late and not several else whole
        if cancel.halfway() or whole < len(running):
            break
    if complete == count or (cancel.is_set() and not cancel.reason):
        return ""
    return f"{complete} of {count} earlier trajectories were completed within half the time limit."


def _alone(run: Any, numbers: Sequence[int], cancel: Stop) -> tuple[Generator[object], list[Outcome]]:
    """Return the steps and the outcome of one trajectory."""
    decoding = run.decoding(run.compose(), run.request.seed, "off", cancel, numbers[0])
    return decoding.steps(), [decoding.outcome]


def _batch(run: Any, numbers: Sequence[int], cancel: Stop) -> tuple[Generator[object], list[Outcome]]:
    """Return the rounds and the outcomes of a batch of trajectories. Tree sizes follow a row's share of the cost of a pass."""
    rows = []
    for number in numbers:
        composition = run.compose(cost_curve=lambda: shared(run.resources.cost_curve(), len(numbers)))
        rows.append(run.decoding(composition, run.request.seed, "off", cancel, number))
    capacity = min(run.target.context_length, len(run.prompt_ids) + run.budget)
    taps = sorted({tap for row in rows for tap in row.composition.hidden_state_layers})
    batch = TextRows(run.target, [capacity] * len(rows), taps)
    return BatchDecoding(rows, batch).rounds(), [row.outcome for row in rows]
