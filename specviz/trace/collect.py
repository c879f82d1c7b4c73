"""Collection of a run's records into a trace."""

from __future__ import annotations

from collections.abc import Iterable

from specviz.trace.metrics import summarise
from specviz.trace.schema import End, Run, Step, Trace


class Collector:
    """The records of a run so far. A later end record replaces an earlier one."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.steps: list[Step] = []
        self.end: End | None = None

    def add(self, record: Run | Step | End) -> None:
        if isinstance(record, Run):
            self.run = record
        elif isinstance(record, Step):
            self.steps.append(record)
        else:
            self.end = record

    @property
    def trace(self) -> Trace:
        assert self.run, "the first record must be a run record"
        return Trace(self.run, tuple(self.steps), self.end)


def collect(records: Iterable[Run | Step | End]) -> Trace:
    """Return the trace made of these records. The first must be a run record."""
    collector = Collector()
    for record in records:
        collector.add(record)
    return collector.trace


def closed(trace: Trace, reason: str, message: str = "", picture: str = "") -> End:
    """Return an end record for an unfinished trace, computed from the steps."""
    ids = tuple(token for step in trace.steps for token in step.emitted)
    text = "".join(piece for step in trace.steps for piece in step.pieces)
    return End(reason, ids, text, 0, summarise(trace.steps, reason, 0), message, picture=picture)
