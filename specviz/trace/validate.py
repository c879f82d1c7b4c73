"""Validation of trace files, line by line: version, order of lines, and properties that no schema can express.

Parents come before children, the path is connected, the emitted tokens follow from the verdicts, and totals match the steps.
"""

from __future__ import annotations

import tomllib
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from specviz.errors import BadTrace
from specviz.paths import ASSETS
from specviz.trace.collect import collect
from specviz.trace.schema import ACCEPTED, PRUNED, RELAXED, RESAMPLED, ROOT, SCHEMA_VERSION, Baseline, End, Run, Step, Trace
from specviz.trace.wire import MAX_ENDS, MAX_LINE, Record, decoded, strict_json

MAX_FILE = 32 << 20
"""Maximum size of a trace file in bytes."""
MAX_DEPTH = 512
"""Maximum depth of a tree."""

RENAMED_NOTES: dict[str, str] = tomllib.loads((ASSETS / "renamed_notes.toml").read_text("utf-8"))
"""Note types in version 2 by their names in version 1."""


def parsed(text: str) -> dict[str, Any]:
    """Return the JSON object of a line, migrated to the current format. ``v`` keeps the version of the file.

    Raises BadTrace for invalid JSON or an unknown version.
    """
    fields = strict_json(text)
    if not isinstance(fields, dict):
        raise BadTrace(f'a line must be one JSON object, such as {{"v":{SCHEMA_VERSION},"seq":0,"kind":"run",...}}.')
    version = fields.get("v")
    if type(version) is not int:
        _wrong("v", f'the version is missing; a line starts with {{"v":{SCHEMA_VERSION},')
    if not 1 <= version <= SCHEMA_VERSION:
        known = f"this specviz reads versions 1 to {SCHEMA_VERSION}; update specviz for a newer one."
        _wrong("v", f"this file has version {version}, but {known}")
    notes = fields.get("notes")
    for note in notes if isinstance(notes, list) else ():
        match note:
            case {"type": str(kind)}:
                note["type"] = RENAMED_NOTES.get(kind, kind)
                if "probed" in note:  # the name of ``with_probe`` before edition 3
                    note["with_probe"] = note.pop("probed")
    return fields


class Intake:
    """Validator of trace lines. Keeps only token ids, counts and the previous step in memory, not the records."""

    def __init__(self) -> None:
        self.count = 0
        self._version: int | None = None
        self._before: Step | None = None
        self._emitted = array("q")
        self._steps = 0
        self._accepted = 0
        self._ends = 0

    def take(self, text: str) -> Record:
        """Return the record of the next line. Raises BadTrace with line number and field if the line is invalid."""
        try:
            if len(text) > MAX_LINE // 4 and len(text.encode("utf-8", "surrogatepass")) > MAX_LINE:
                raise BadTrace(f"is longer than {MAX_LINE} bytes.")
            fields = parsed(text)
            if self.count and fields["v"] != self._version:
                _wrong("v", "is not the version of the first line.")
            self._version = fields["v"]
            record = decoded(fields)
            if fields["seq"] != self.count:
                _wrong("seq", f"is {fields['seq']}, but {self.count} lines precede this line; a line is missing or duplicated.")
            if isinstance(record, Run) == (self.count > 0):
                _wrong("kind", "the first line, and no other, must be the run line.")
            if isinstance(record, Step):
                self._take_step(record)
            elif isinstance(record, End):
                self._take_end(record)
        except BadTrace as fault:
            raise BadTrace(str(fault), self.count + 1, fault.field) from None
        self.count += 1
        return record

    def _take_step(self, step: Step) -> None:
        if self._ends:
            _wrong("kind", "a step cannot follow the end.")
        check_step(step)
        if step.index != self._steps:
            _wrong("index", f"is {step.index}, but {self._steps} steps precede this step.")
        if before := self._before:
            position = before.position + len(before.emitted)
            if before.cut is not None:
                _wrong("index", "the previous step was cut short and must be the last one.")
            if step.position != position:
                _wrong("position", f"is {step.position}, but the previous step ended at {position}.")
            if before.emitted and step.nodes[0].token != before.emitted[-1]:
                _wrong("nodes[0][1]", "the root is not the last token emitted by the previous step.")
        self._before = step
        self._steps += 1
        self._accepted += step.accepted
        self._emitted.extend(step.emitted)

    def _take_end(self, end: End) -> None:
        if self._ends >= MAX_ENDS:
            _wrong("kind", f"there are more than {MAX_ENDS} end lines.")
        if end.baseline:
            _check_baseline(end, end.baseline)
        emitted = len(self._emitted)
        if array("q", end.output_ids) != self._emitted:
            _wrong("output_ids", f"the {len(end.output_ids)} output_ids do not match the {emitted} tokens emitted by the steps.")
        stated = end.metrics
        for name, count in (("steps", self._steps), ("emitted", emitted), ("accepted", self._accepted)):
            if stated.get(name, count) != count:
                _wrong(f"metrics.{name}", f"{name} is {stated[name]}, but the steps add up to {count}; the record is damaged.")
        if (counts := stated.get("histogram")) is not None:
            sums = sum(counts), sum(place * count for place, count in enumerate(counts))
            if sums != (self._steps, self._accepted):
                claim = f"it counts {sums[0]} steps with {sums[1]} accepted tokens, but the trace has {self._steps}"
                _wrong("metrics.histogram", f"{claim} with {self._accepted}; the record is damaged.")
        self._ends += 1


def _wrong(field: str, message: str) -> NoReturn:
    raise BadTrace(message, field=field)


def check_step(step: Step) -> None:
    """Raise BadTrace, with the field, if the step is inconsistent."""
    if step.nodes[0].parent != -1 or step.nodes[0].status != ROOT:
        _wrong("nodes[0]", "the first node must be the root, with parent -1 and status root.")
    for place, node in enumerate(step.nodes[1:], 1):
        if not 0 <= node.parent < place:
            _wrong(f"nodes[{place}][0]", f"the parent is {node.parent}; a parent must come before its child.")
        if node.status == ROOT:
            _wrong(f"nodes[{place}][5]", "only the first node can be the root.")
        if step.nodes[node.parent].status == PRUNED and node.status != PRUNED:
            _wrong(f"nodes[{place}][5]", "the node's parent was pruned, so the node must be pruned too.")
    if max(step.depths) > MAX_DEPTH:
        _wrong("nodes", f"a node is deeper than {MAX_DEPTH}.")

    above = 0
    for place, number in enumerate(step.path):
        if not 0 < number < len(step.nodes):
            _wrong(f"path[{place}]", f"there is no drafted node {number}.")
        if step.nodes[number].parent != above:
            _wrong(f"path[{place}]", f"node {number} is not a child of node {above}, the previous node on the path.")
        above = number
    on_path = set(step.path)
    for place, node in enumerate(step.nodes):
        if node.status == RESAMPLED:  # allowed on and off the path
            continue
        if (node.status in (ACCEPTED, RELAXED)) != (place in on_path):
            on = "on" if place in on_path else "not on"
            _wrong(f"nodes[{place}][5]", f"the status is {node.status}, but the node is {on} the accepted path.")
    if step.bonus and step.bonus.parent != above:
        _wrong("bonus[0]", f"the bonus token's parent is {step.bonus.parent}, but the path ends at {above}.")

    tokens = [step.nodes[number].token for number in step.path]
    if step.bonus:
        tokens.append(step.bonus.token)
    if list(step.emitted) != tokens[: len(step.emitted)]:
        _wrong("emitted", "must be the tokens of the path, followed by the bonus token.")
    if step.cut is None and len(step.emitted) < len(tokens):
        _wrong("emitted", "is shorter than the path and the bonus, but the step was not cut short (cut is null).")
    if len(step.pieces) != len(step.emitted):
        _wrong("pieces", f"has {len(step.pieces)} texts for {len(step.emitted)} emitted tokens.")

    scored = sum(node.status != PRUNED for node in step.nodes) - 1
    if step.verified < scored:  # larger in a sparse recording, which has only the nodes of the path
        _wrong("verified", f"is {step.verified}, but {scored} nodes below the root were not pruned.")
    if step.padded < step.verified + 1:
        _wrong("padded", f"is {step.padded}, but the root and the verified nodes take {step.verified + 1} rows.")
    nodes_with_row: set[int] = set()
    for place, row in enumerate(step.rows):
        if row.node >= len(step.nodes) or row.node in nodes_with_row:
            _wrong(f"rows[{place}][0]", f"node {row.node} does not exist or already has a row.")
        nodes_with_row.add(row.node)


def _check_baseline(end: End, baseline: Baseline) -> None:
    parting = len(baseline.token_ns)
    if divergence := baseline.first_divergence:
        if baseline.equal:
            _wrong("baseline.equal", "is true, but first_divergence is set.")
        parting = divergence.position
        if parting > len(end.output_ids):
            _wrong("baseline.first_divergence.position", "is past the end of the output.")
    elif baseline.picture:
        _wrong("baseline.picture", "is allowed only with a first_divergence.")
    if baseline.pieces and len(baseline.pieces) != len(baseline.token_ns) - parting:
        _wrong("baseline.pieces", "must have one text for each baseline token from first_divergence on.")


def alone(text: str) -> Record:
    """Return the record of a single line, without checks across lines. Raises BadTrace with the invalid field."""
    return decoded(parsed(text))


def records(lines: Iterable[str]) -> Iterator[Record]:
    """Yield the validated record of each line. Raises BadTrace with line and field."""
    intake = Intake()
    for text in lines:
        yield intake.take(text)
    if not intake.count:
        raise BadTrace("the file is empty; a trace starts with a run line.", 1)


def read_lines(lines: Iterable[str]) -> Trace:
    """Return the trace made of these lines, validated. Raises BadTrace with line and field."""
    return collect(records(lines))
