"""Recorded runs that come with the app: an index file that names them, and the trace files beside it.

``index.json``: {"default": NAME, "pair": [NAME, NAME], "traces": [{"name", "file", "title", "note", "rehearsals"}, ...]}.
``pair`` is what the Compare tab opens with. ``name`` is what a link says (``?trace=NAME``), ``file`` lies in the same folder,
``note`` is one sentence on what to watch, ``rehearsals`` how often the run was made before, for a method with a memory. What
else an entry holds is for ``python -m specviz record``, which makes the files.
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
from specviz.trace.schema import End, Run, Trace

NO_FASTER = 1.03
"""Below this speed-up a run is said to have gained nothing, and below its mirror image to have lost."""

OTHERS = "Other methods"
"""The heading of recorded runs whose method this version does not know."""


@dataclass(frozen=True)
class Recording:
    """One recorded run. What was run and how it ended are read without the steps, which are most of a file."""

    name: str
    title: str
    note: str
    path: Path
    rehearsals: int = 0

    @property
    def watch(self) -> str:
        """What to watch in it; and, where it was no faster than its baseline, that it was not."""
        speed = self.end.metrics.get("speedup") if self.end else None
        if not speed or speed >= NO_FASTER or self.run.method == "autoregressive":
            return self.note
        word = "slower" if speed < 2 - NO_FASTER else "no faster"
        return f"{self.note} This run was {word} than one token at a time: {speed:.2f}×.".strip()

    @cached_property
    def text(self) -> str:
        """The file as it is. Raises BadInput when it is missing."""
        return self._bytes().decode("utf-8")

    @cached_property
    def run(self) -> Run:
        """What was run. Raises BadTrace when the first line does not say so."""
        record = self._record(self._bytes().partition(b"\n")[0])
        if not isinstance(record, Run):
            raise BadTrace(f"{self.path.name} does not begin with what was run.")
        return record

    @cached_property
    def end(self) -> End | None:
        """How it ended; None when the file stops before that. Raises BadTrace when the last line is none."""
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
    """The recorded runs by name, in the index's order. Empty when there is no index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = folder / "index.json"
        listing = json.loads(index.read_text(encoding="utf-8")) if index.exists() else {"traces": []}
        recordings = [self._recording(entry, index) for entry in listing["traces"]]
        self.recordings = {recording.name: recording for recording in recordings}
        pair = [name for name in listing.get("pair", ()) if name in self.recordings]
        self.pair = (pair[0], pair[1]) if len(pair) == 2 else None
        self.default = self.recordings.get(listing.get("default", "")) or next(iter(recordings), None)

    def _recording(self, entry: dict[str, Any], index: Path) -> Recording:
        missing = {"name", "file", "title"} - entry.keys()
        if missing or not entry["file"] or Path(entry["file"]).name != entry["file"]:
            raise BadTrace(f"{index.name} has an entry without {', '.join(sorted(missing)) or 'a plain file name'}.")
        path, rehearsals = self.folder / entry["file"], int(entry.get("rehearsals", 0))
        return Recording(entry["name"], entry["title"], entry.get("note", ""), path, rehearsals)

    def get(self, name: str) -> Recording:
        """The recording called ``name``. Raises BadInput listing the names there are."""
        if name not in self.recordings:
            listed = ", ".join(self.recordings) or "none here"
            raise BadInput(f"There is no recorded run {name[:60]!r}; there are: {listed}.")
        return self.recordings[name]

    def choices(self, *modalities: str) -> list[tuple[str, str]]:
        """Title and name of each, or of those of these kinds, for a drop-down: in the order in which methods are listed."""
        order = {method.name: at for at, method in enumerate(entry for family in families().values() for entry in family)}
        recordings = [one for one in self.recordings.values() if not modalities or one.run.modality in modalities]
        recordings.sort(key=lambda recording: order.get(recording.run.method, len(order)))
        return [(recording.title, recording.name) for recording in recordings]

    def by_family(self, *modalities: str) -> dict[str, list[tuple[str, str]]]:
        """The same under the titles of their methods' families, which are those of the drop-down of methods."""
        family = {method.name: title for title, methods in families().items() for method in methods}
        grouped: dict[str, list[tuple[str, str]]] = {title: [] for title in families()}
        for title, name in self.choices(*modalities):
            grouped.setdefault(family.get(self.recordings[name].run.method, OTHERS), []).append((title, name))
        return {title: listed for title, listed in grouped.items() if listed}

    def first(self, modality: str) -> Recording | None:
        """The first recorded run of a kind, if there is one."""
        return next((recording for recording in self.recordings.values() if recording.run.modality == modality), None)

    def of_method(self, method: str, *modalities: str) -> Recording | None:
        """The first recorded run of a method, or that of one of these kinds, if there is one."""
        recordings = (one for one in self.recordings.values() if one.run.method == method)
        return next((one for one in recordings if not modalities or one.run.modality in modalities), None)
