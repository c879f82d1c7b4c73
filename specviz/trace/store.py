"""Trace files on disk (.spectrace.jsonl), and a bounded store of live and uploaded traces in memory."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from specviz.errors import BadInput, BadTrace
from specviz.trace.schema import Trace
from specviz.trace.validate import MAX_FILE, read_lines, split
from specviz.trace.wire import MAX_LINE, TraceWriter, line

__all__ = ["SUFFIX", "TraceStore", "TraceWriter", "line", "lines", "read", "text", "validate", "write"]

SUFFIX = ".spectrace.jsonl"


def lines(trace: Trace) -> list[str]:
    """The lines of a trace's file, without line ends."""
    writer = TraceWriter()
    records = [trace.run, *trace.steps] + ([] if trace.end is None else [trace.end])
    return [writer.add(record) for record in records]


def text(trace: Trace) -> str:
    """The whole file's text. Raises BadTrace when it would be longer than a file may be."""
    made = "\n".join(lines(trace)) + "\n"
    if len(made.encode("utf-8")) > MAX_FILE:
        raise BadTrace(f"This run's file would pass {MAX_FILE >> 20} MiB; ask for fewer tokens or smaller trees.")
    return made


def write(trace: Trace, path: str | Path) -> None:
    """Write a trace file. A file of that name is replaced only once the new one is whole."""
    save(text(trace), path)


def save(made: str, path: str | Path) -> Path:
    """Write a text file whole or not at all, and return its path. Raises BadInput when the file cannot be written."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        partial.write_text(made, encoding="utf-8", newline="\n")
        partial.replace(target)
    except OSError as fault:
        partial.unlink(missing_ok=True)
        raise BadInput(f"{target} cannot be written: {fault.strerror or fault}.") from fault
    return target


def read(source: str | Path | bytes) -> Trace:
    """The trace in a file, or in a file's content. Raises BadTrace naming line and field, BadInput without a file.

    A ``Path`` is a file, ``bytes`` are content, and a ``str`` is content when it starts with a brace or has a line end.
    """
    return read_lines(split(_content(source)))


def validate(source: str | Path | bytes) -> None:
    """None when the trace is good in every respect; else raises BadTrace naming the first wrong line and field."""
    read(source)


def _content(source: str | Path | bytes) -> bytes:
    if isinstance(source, bytes):
        return source
    if isinstance(source, str) and (source.lstrip().startswith("{") or "\n" in source):
        return source.encode("utf-8", "surrogatepass")
    try:
        with Path(source).open("rb") as file:
            return file.read(MAX_FILE + 1)
    except (OSError, ValueError) as fault:
        cause = fault.strerror if isinstance(fault, OSError) else fault
        raise BadInput(f"The trace file {str(source)[:200]!r} cannot be read: {cause}.") from None


@dataclass
class _Kept:
    lines: list[str] = field(default_factory=list)
    size: int = 0


class TraceStore:
    """Lines of the latest traces under keys that nobody can guess. Safe to use from several threads.

    When there are more than ``max_traces``, or more than ``max_bytes`` in all, the one left alone longest goes first;
    whoever asks for it later gets a BadInput that says so.
    """

    def __init__(self, max_traces: int = 64, max_bytes: int = 128 << 20) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = threading.Lock()
        self._max_traces = max_traces
        self._max_bytes = max_bytes
        self._size = 0

    def new(self, given: Iterable[str] = ()) -> str:
        """Room for a trace; returns its key. ``given`` are its first lines."""
        key = secrets.token_urlsafe(18)
        with self._lock:
            self._kept[key] = _Kept()
            self._evict(key)
        try:
            for one in given:
                self.append(key, one)
        except BadTrace:
            self.drop(key)
            raise
        return key

    def add(self, trace: Trace) -> str:
        """Keep a whole trace; returns its key."""
        return self.new(lines(trace))

    def append(self, key: str, one: str) -> int:
        """Add a line; returns how many there are now. Raises BadTrace when the trace outgrows what a file may hold."""
        size = len(one.encode("utf-8", "surrogatepass")) + 1
        with self._lock:
            kept = self._find(key)
            if size > MAX_LINE + 1 or kept.size + size > min(MAX_FILE, self._max_bytes):
                raise BadTrace("This run has grown past what the server keeps; ask for fewer tokens or smaller trees.")
            kept.lines.append(one)
            kept.size += size
            self._size += size
            self._evict(key)
            return len(kept.lines)

    def lines(self, key: str, start: int = 0, stop: int | None = None) -> list[str]:
        """Lines ``start`` to ``stop`` (not included). Counts below 0 are read as 0, counts past the end as the end."""
        with self._lock:
            kept = self._find(key)
            return kept.lines[max(0, start) : None if stop is None else max(0, stop)]

    def text(self, key: str) -> str:
        """The file of this trace as it stands."""
        return "".join(one + "\n" for one in self.lines(key))

    def drop(self, key: str) -> None:
        """Forget a trace; an unknown key is no error."""
        with self._lock:
            kept = self._kept.pop(key, None)
            self._size -= 0 if kept is None else kept.size

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return key in self._kept

    def __len__(self) -> int:
        with self._lock:
            return len(self._kept)

    @property
    def size(self) -> int:
        """Bytes kept, line ends included."""
        with self._lock:
            return self._size

    def _find(self, key: str) -> _Kept:
        if not isinstance(key, str) or key not in self._kept:
            raise BadInput("This run is no longer kept on the server; run it again or open its saved file.")
        self._kept.move_to_end(key)
        return self._kept[key]

    def _evict(self, newest: str) -> None:
        while len(self._kept) > 1 and (len(self._kept) > self._max_traces or self._size > self._max_bytes):
            oldest = next(key for key in self._kept if key != newest)
            self._size -= self._kept.pop(oldest).size
