"""Validation of trace files, line by line: version and order, then consistency of the lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from specviz.errors import BadTrace
from specviz.trace import metrics
from specviz.trace.collect import collect
from specviz.trace.meaning import check_end, check_follows, check_step
from specviz.trace.schema import MAX_STEPS, SCHEMA_VERSION, End, Run, Step, Trace
from specviz.trace.wire import MAX_ENDS, MAX_LINE, Record, decoded, strict_json

MAX_FILE = 32 << 20
"""Maximum size of a trace file in bytes."""

RENAMED_NOTES = {
    "arms": "drafter_selection", "belts": "cascade", "coarse": "coarse_codes", "entropy_map": "attention_entropy",
    "islands": "local_verification", "layers": "layer_groups", "mass": "beam_mass", "merged": "merged_tree",
    "residuals": "step_embeddings", "reward": "tree_reward", "rows": "batch_cache", "ssm_mask": "decay_mask",
    "typical": "typical_acceptance", "window": "jacobi_window",
}  # fmt: skip
"""By type of a note in version 1, its type in version 2."""


def _rename_notes(fields: dict[str, Any]) -> None:
    notes = fields.get("notes")
    for note in notes if isinstance(notes, list) else ():
        if isinstance(note, dict) and isinstance(note.get("type"), str):
            note["type"] = RENAMED_NOTES.get(note["type"], note["type"])


MIGRATIONS: dict[int, Callable[[dict[str, Any]], None]] = {1: _rename_notes}
"""By version, the function that changes a line of that version into one of the next, so that old files stay readable."""


def parsed(text: str) -> dict[str, Any]:
    """Return one line's JSON object in the current version, under ``v`` the version it was written in.

    Raises BadTrace for any other input or an unknown version.
    """
    fields = strict_json(text)
    if not isinstance(fields, dict):
        raise BadTrace(f'a line is one JSON object, like {{"v":{SCHEMA_VERSION},"seq":0,"kind":"run",...}}.')
    version = fields.get("v")
    if type(version) is not int:
        raise BadTrace(f'there is no version; every line starts with {{"v":{SCHEMA_VERSION},', field="v")
    if version > SCHEMA_VERSION:
        message = f"this file is of version {version}, and this specviz reads up to {SCHEMA_VERSION}; update specviz."
        raise BadTrace(message, field="v")
    for older in range(version, SCHEMA_VERSION):
        if older not in MIGRATIONS:
            raise BadTrace(f"version {older} of the format never existed.", field="v")
        MIGRATIONS[older](fields)
    return fields


class Intake:
    """Validator of a trace's lines, in order, that raises at the first invalid one.

    It keeps emitted tokens, counts and the previous step, not the records, so checking a file takes little memory.
    """

    def __init__(self) -> None:
        self._begun = False
        self._before: Step | None = None
        self._totals = metrics.Totals()
        self._ends = 0
        self._version: int | None = None
        self.count = 0

    def take(self, text: str) -> Record:
        """Return the next line's record. Raises BadTrace with the line's number and the invalid field."""
        try:
            if len(text) > MAX_LINE // 4 and len(text.encode("utf-8", "surrogatepass")) > MAX_LINE:
                raise BadTrace(f"is longer than {MAX_LINE} bytes.")
            fields = parsed(text)
            if self.count and fields["v"] != self._version:
                raise BadTrace("is not the version of the first line.", field="v")
            self._version = fields["v"]
            record = decoded(fields)
            if fields["seq"] != self.count:
                message = f"is {fields['seq']}, and {self.count} lines come before this one; a line is missing or doubled."
                raise BadTrace(message, field="seq")
            self._place(record)
        except BadTrace as fault:
            raise BadTrace(str(fault), self.count + 1, fault.field) from None
        self.count += 1
        return record

    def _place(self, record: Record) -> None:
        if isinstance(record, Run) == self._begun:
            raise BadTrace("the first line is the run line, and no other is.", field="kind")
        self._begun = True
        if isinstance(record, Step):
            if self._ends:
                raise BadTrace("a step cannot follow the end.", field="kind")
            if self._totals.steps >= MAX_STEPS:
                raise BadTrace(f"there are more than {MAX_STEPS} steps.", field="index")
            check_step(record)
            check_follows(record, self._before)
            self._before = record
            self._totals.add(record)
        elif isinstance(record, End):
            if self._ends >= MAX_ENDS:
                raise BadTrace(f"there are more than {MAX_ENDS} end lines.", field="kind")
            check_end(record)
            self._totals.check(record)
            self._ends += 1


def alone(text: str) -> Record:
    """Return one line's record, without checking it against other lines. Raises BadTrace with the invalid field."""
    return decoded(parsed(text))


def records(lines: Iterable[str]) -> Iterator[Record]:
    """Yield the record of each line, checked. Raises BadTrace with line and field."""
    intake = Intake()
    for text in lines:
        yield intake.take(text)
    if not intake.count:
        raise BadTrace("there is no run line; the file is empty.", 1)


def read_lines(lines: Iterable[str]) -> Trace:
    """Return the trace of these lines. Raises BadTrace with line and field."""
    return collect(records(lines))
