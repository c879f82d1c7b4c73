"""Collection of a run's records, as they arrive one by one, into a trace."""

from __future__ import annotations

from collections.abc import Iterable

from specviz.trace.metrics import summarise
from specviz.trace.schema import End, Run, Step, Trace


class Collector:
    """Records of a run so far. Of several end records the last one counts."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.steps: list[Step] = []
        self.end: End | None = None

    def add(self, record: Run | Step | End) -> None:
        """Take the next record."""
        if isinstance(record, Run):
            self.run = record
        elif isinstance(record, Step):
            self.steps.append(record)
        else:
            self.end = record

    @property
    def trace(self) -> Trace:
        """The trace so far."""
        assert self.run is not None, "a run starts with its record"
        return Trace(self.run, tuple(self.steps), self.end)


def collect(records: Iterable[Run | Step | End]) -> Trace:
    """The trace of these records, which begin with a run's."""
    collector = Collector()
    for record in records:
        collector.add(record)
    return collector.trace


def closed(trace: Trace, reason: str, message: str = "", picture: str = "") -> End:
    """The end of a run that wrote none, after the steps so far."""
    ids = tuple(token for step in trace.steps for token in step.emitted)
    text = "".join(piece for step in trace.steps for piece in step.pieces)
    return End(reason, ids, text, 0, summarise(trace.steps, reason, 0), message, picture=picture)
