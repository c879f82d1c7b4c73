"""Trace files on disk (.spectrace.jsonl or .spectrace.jsonl.gz), and a bounded in-memory store of live and uploaded traces."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import secrets
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specviz.errors import BadInput, BadTrace, SpecvizError
from specviz.trace.collect import collect
from specviz.trace.schema import End, Run, Trace
from specviz.trace.validate import MAX_FILE, read_lines, records
from specviz.trace.wire import MAX_LINE, Record, TraceWriter, decoded

SUFFIX = ".spectrace.jsonl"
PACKED = ".gz"
"""Extra suffix of a compressed file."""


def lines(trace: Trace) -> list[str]:
    """Return the lines of a trace file, without line ends."""
    writer = TraceWriter()
    records: list[Record] = [trace.run, *trace.steps, *([trace.end] if trace.end else [])]
    return [writer.add(record) for record in records]


def text(trace: Trace) -> str:
    """Return the text of a trace file. Raises BadTrace if the text exceeds ``MAX_FILE`` bytes."""
    content = "\n".join(lines(trace)) + "\n"
    if len(content.encode("utf-8")) > MAX_FILE:
        raise BadTrace(f"The trace of this run would exceed {MAX_FILE >> 20} MiB; request fewer tokens or smaller trees.")
    return content


def write(trace: Trace, path: str | Path) -> None:
    """Write a trace file atomically. Raises BadTrace for an invalid trace."""
    content = text(trace)
    read(content)
    save(content, path)


def save(content: str, path: str | Path) -> Path:
    """Write a text file atomically, gzipped if ``path`` ends in .gz, and return the path.

    Raises BadInput if writing fails.
    """
    target, data = Path(path), content.encode("utf-8")
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        partial.write_bytes(gzip.compress(data, mtime=0) if target.suffix == PACKED else data)
        partial.replace(target)
    except OSError as fault:
        partial.unlink(missing_ok=True)
        raise BadInput(f"{target} cannot be written: {fault.strerror or fault}.") from fault
    return target


def read(source: str | Path | bytes) -> Trace:
    """Read a trace. ``source`` is a path, or the content of a trace file.

    A ``str`` is taken as content if it starts with a brace or contains a line break. Raises BadInput for an unreadable file, and
    BadTrace, with line and field, for invalid content.
    """
    if isinstance(source, str) and (source.lstrip().startswith("{") or "\n" in source):
        source = source.encode("utf-8", "surrogatepass")
    return read_lines(split(source if isinstance(source, bytes) else unpacked(source)))


def unpacked(path: str | Path) -> bytes:
    """Return the decompressed content of a trace file, at most ``MAX_FILE`` + 1 bytes.

    Raises BadInput if the file cannot be read.
    """
    try:
        with gzip.open(path) if Path(path).suffix == PACKED else Path(path).open("rb") as file:
            return file.read(MAX_FILE + 1)
    except (OSError, ValueError, EOFError, zlib.error) as fault:
        cause = getattr(fault, "strerror", None) or fault
        raise BadInput(f"The trace file {str(path)[:200]!r} cannot be read: {cause}.") from None


def split(data: bytes) -> Iterator[str]:
    """Yield the lines of a trace file. Raises BadTrace if the file is too large or a line is not UTF-8."""
    if len(data) > MAX_FILE:
        raise BadTrace(f"The file is larger than {MAX_FILE >> 20} MiB, the maximum size of a trace.")
    lines = io.BytesIO(data.removeprefix(codecs.BOM_UTF8))  # not splitlines, which also splits at U+2028 and similar
    for number, encoded in enumerate(lines, 1):
        try:
            line = encoded.decode("utf-8")
        except UnicodeDecodeError as fault:
            raise BadTrace(f"not UTF-8 (byte {fault.start + 1}).", number) from None
        if line.endswith("\n") or line.strip():
            yield line.removesuffix("\n").removesuffix("\r")


def rewritten(source: bytes) -> Iterator[str]:
    """Validate a trace file's content and yield the lines in the current format, with only the last of two end lines.

    At most one line is in memory. Raises BadTrace with line and field.
    """
    writer, end = TraceWriter(), None
    for record in records(split(source)):
        if isinstance(record, End):
            end = record
        else:
            yield writer.add(record)
    if end:
        yield writer.add(end)


@dataclass(frozen=True)
class Outline:
    """First and last record of a trace, with the numbers of steps and emitted tokens."""

    run: Run
    end: End | None
    steps: int
    tokens: int


def outlined(trace: Trace) -> Outline:
    return Outline(trace.run, trace.end, len(trace.steps), sum(len(step.emitted) for step in trace.steps))


def outline(trace_lines: Sequence[str]) -> Outline:
    """Return the outline of validated trace lines. Steps are parsed only if the end line, which lists the tokens, is missing."""
    run, end, steps = decoded(json.loads(trace_lines[0])), None, list(trace_lines[1:])
    while steps and (fields := json.loads(steps[-1]))["kind"] == "end":
        end = end or decoded(fields)
        steps.pop()
    assert isinstance(run, Run) and isinstance(end, End | None)
    tokens = len(end.output_ids) if end else sum(len(json.loads(line)["emitted"]) for line in steps)
    return Outline(run, end, len(steps), tokens)


@dataclass
class _Entry:
    lines: list[bytes]
    size: int = 0
    checked: bool = False


class TraceStore:
    """Thread-safe store of trace lines under unguessable keys.

    Beyond ``max_traces`` traces or ``max_bytes`` bytes, the store evicts the least recently used trace. Access by an evicted key
    raises BadInput.
    """

    def __init__(self, max_traces: int = 96, max_bytes: int = 256 << 20) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._max_traces = max_traces
        self._max_bytes = max_bytes
        self._size = 0

    def new(self, first_lines: Iterable[str] = (), checked: bool = False, key: str = "") -> str:
        """Create a trace and return its key, by default a new one. ``checked``: whether ``first_lines`` is a complete trace,
        already validated."""
        key = key or secrets.token_urlsafe(18)
        with self._lock:
            self._entries[key] = _Entry([], checked=checked)
            self._evict(key)
        try:
            for line in first_lines:
                self.append(key, line)
        except SpecvizError:
            self.drop(key)
            raise
        return key

    def append(self, key: str, line: str) -> int:
        """Add a line and return the new number of lines. Raises BadTrace if the line or the trace is too large."""
        data = line.encode("utf-8", "surrogatepass")  # not str, which takes four bytes per character after a single emoji
        size = len(data) + 1
        with self._lock:
            entry = self._find(key)
            if size > MAX_LINE + 1 or entry.size + size > min(MAX_FILE, self._max_bytes):
                raise BadTrace("The trace of this run is too large for the server; request fewer tokens or smaller trees.")
            entry.lines.append(data)
            entry.size += size
            self._size += size
            self._evict(key)
            return len(entry.lines)

    def lines(self, key: str, start: int = 0, stop: int | None = None) -> list[str]:
        """Return lines ``start`` to ``stop`` (exclusive), with both indices clipped to the trace."""
        with self._lock:
            encoded_lines = self._find(key).lines[max(0, start) : None if stop is None else max(0, stop)]
        return [line.decode("utf-8", "surrogatepass") for line in encoded_lines]

    def text(self, key: str) -> str:
        return "".join(line + "\n" for line in self.lines(key))

    def trace(self, key: str) -> Trace:
        """Return the decoded trace. Raises BadTrace if lines added without ``checked`` are invalid."""
        with self._lock:
            entry = self._find(key)
            encoded_lines, checked = list(entry.lines), entry.checked
        if checked:
            return collect(decoded(json.loads(line)) for line in encoded_lines)
        return read_lines(line.decode("utf-8", "surrogatepass") for line in encoded_lines)

    def drop(self, key: str) -> None:
        """Remove a trace if present."""
        with self._lock:
            if entry := self._entries.pop(key, None):
                self._size -= entry.size

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return key in self._entries

    def _find(self, key: str) -> _Entry:
        if not isinstance(key, str) or key not in self._entries:
            raise BadInput("This run is no longer on the server; run it again or open a saved trace file.")
        self._entries.move_to_end(key)
        return self._entries[key]

    def _evict(self, newest: str) -> None:
        while len(self._entries) > 1 and (len(self._entries) > self._max_traces or self._size > self._max_bytes):
            oldest = next(key for key in self._entries if key != newest)
            self._size -= self._entries.pop(oldest).size
