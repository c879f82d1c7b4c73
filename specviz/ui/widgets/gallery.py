"""Recorded runs that come with the app: each a trace file, with its title and note beside it.

``NAME.json``: {"title", "note", "rehearsals"}. Links carry ``NAME`` (``?trace=NAME``), ``note`` is one sentence on what to
watch, ``rehearsals`` the number of earlier runs, for a method with a memory. The file's other fields are for
``python -m specviz record``, which makes ``NAME.spectrace.jsonl.gz``. ``index.json``: {"first": {MODALITY: NAME}, "pair": [NAME,
NAME]}, the runs with which the tabs and *Compare* open.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specviz.errors import BadInput, BadTrace
from specviz.methods.registry import families
from specviz.trace import store, validate
from specviz.trace.schema import SCHEMA_VERSION, End, Run, Trace

NO_FASTER = 1.03
"""Speed-up below which a run counts as no faster, and below its mirror image, 2 - NO_FASTER, as slower."""

Titles = list[tuple[str, str]]
"""Title and name of every entry of a drop-down."""
Groups = dict[str, Titles]
"""The entries under their headings."""
OTHERS = "Other methods"
"""Heading of recorded runs whose method is unknown to this version."""


@dataclass(frozen=True)
class Recording:
    """One recorded run. Its run and end records are read without the steps, which are most of a file."""

    name: str
    title: str
    note: str
    path: Path
    rehearsals: int = 0

    @property
    def watch(self) -> str:
        """The note on what to watch, with a further sentence if the run is no faster than its baseline."""
        speed = self.end.metrics.get("speedup") if self.end else None
        if not speed or speed >= NO_FASTER or self.run.method == "autoregressive":
            return self.note
        word = "slower" if speed < 2 - NO_FASTER else "no faster"
        return f"{self.note} This run was {word} than one token at a time: {speed:.2f}×.".strip()

    @cached_property
    def text(self) -> str:
        """Text of the file, in the current version of the format. Raises BadInput when it is missing, BadTrace when it is of an
        older version and breaks the schema."""
        content = self._bytes()
        if content.startswith(b'{"v":%d,' % SCHEMA_VERSION):
            return content.decode("utf-8")
        return "".join(f"{line}\n" for line in store.rewritten(content))

    @cached_property
    def run(self) -> Run:
        """The run record. Raises BadTrace when the first line is another record."""
        record = self._record(self._bytes().partition(b"\n")[0])
        if not isinstance(record, Run):
            raise BadTrace(f"{self.path.name} does not begin with a run record.")
        return record

    @cached_property
    def end(self) -> End | None:
        """The end record; None when the file stops before it. Raises BadTrace when the last line is no record."""
        record = self._record(self._bytes().rstrip(b"\n").rpartition(b"\n")[2])
        return record if isinstance(record, End) else None

    @cached_property
    def trace(self) -> Trace:
        """The run as data. Raises BadTrace when the file breaks the schema."""
        return store.read(self._bytes())

    def _bytes(self) -> bytes:
        try:
            return store.unpacked(self.path)
        except BadInput as error:
            raise BadInput(f"The recorded run {self.name} cannot be read. {error}") from None

    def _record(self, line: bytes) -> validate.Record:
        try:
            return validate.alone(line.decode("utf-8"))
        except (BadTrace, UnicodeDecodeError) as error:
            raise BadTrace(f"{self.path.name} cannot be read: {error}") from None


class Gallery:
    """The recorded runs by name, empty for a folder without any."""

    def __init__(self, folder: Path) -> None:
        listed: dict[str, Any] = {}
        for file in sorted(folder.glob("*.json")):
            try:
                listed[file.stem] = json.loads(file.read_text(encoding="utf-8"))
            except ValueError as error:
                raise BadTrace(f"{file.name} is no JSON: {error}.") from None
        index = listed.pop("index", {})
        if "traces" in index:
            raise BadTrace("index.json lists recorded runs, as in edition 2; describe each in a NAME.json beside its file.")
        self.recordings = dict[str, Recording]()
        for name, entry in listed.items():
            if not isinstance(entry, dict) or "title" not in entry:
                raise BadTrace(f"{name}.json gives its recorded run no title.")
            plain = folder / f"{name}{store.SUFFIX}"
            path = plain if plain.exists() else plain.with_name(f"{plain.name}.gz")
            self.recordings[name] = Recording(name, entry["title"], entry.get("note", ""), path, entry.get("rehearsals", 0))
        self._first = index.get("first", {})
        pair: list[str] = index.get("pair", [])
        self.pair = pair if all(name in self.recordings for name in pair) else []
        self.default = self.first("text") or next(iter(self.recordings.values()), None)

    def get(self, name: str) -> Recording:
        """Return the recording called ``name``. Raises BadInput listing the known names, or without a name."""
        if not name:
            raise BadInput("There is no run to show yet: run something, or choose a recorded run.")
        if name not in self.recordings:
            listed = ", ".join(self.recordings) or "none here"
            raise BadInput(f"There is no recorded run {name[:60]!r}; the recorded runs are: {listed}.")
        return self.recordings[name]

    def by_family(self, *modalities: str) -> Groups:
        """Title and name of each run, of these modalities if given, by the title of their method's family, as in the drop-down of
        methods."""
        family = {method.name: title for title, methods in families().items() for method in methods}
        rank = {name: at for at, name in enumerate(family)}
        grouped = Groups()
        for one in sorted(self.of(*modalities), key=lambda one: rank.get(one.run.method, len(rank))):
            grouped.setdefault(family.get(one.run.method, OTHERS), []).append((one.title, one.name))
        return grouped

    def of(self, *modalities: str) -> list[Recording]:
        """The recorded runs of these modalities, by default of all."""
        return [one for one in self.recordings.values() if not modalities or one.run.modality in modalities]

    def first(self, modality: str) -> Recording | None:
        """Return the recorded run with which the tab of a modality opens, if there is one."""
        return self.recordings.get(self._first.get(modality, "")) or next(iter(self.of(modality)), None)

    def of_method(self, method: str, *modalities: str) -> Recording | None:
        """Return the first recorded run of a method, of these modalities if given, if there is one."""
        return next((one for one in self.of(*modalities) if one.run.method == method), None)
