"""Runs by name, recorded ones that come with the app and stored ones of a session, and the pool that reads the stored ones.

A recorded run is a trace file with its title and note beside it, ``NAME.json``. Links carry its name (``?trace=NAME``).
``python -m specviz record`` makes ``NAME.spectrace.jsonl.gz`` from that file's other fields.

The pool is bounded. Gradio has forty threads for all visitors; a request for a run waits here without holding one of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from specviz.errors import BadInput, BadTrace
from specviz.methods.registry import families
from specviz.trace import store as traces
from specviz.trace import validate
from specviz.trace.schema import SCHEMA_VERSION, End, Run, Trace
from specviz.trace.store import Outline, TraceStore, outline, outlined
from specviz.trace.validate import MAX_FILE
from specviz.ui.shared_runs import SharedRuns
from specviz.viewer.component import control

Titles = list[tuple[str, str]]
"""Title and name of every entry of a drop-down."""
Groups = dict[str, Titles]
"""The entries under their headings."""
OTHERS = "Other methods"
"""Heading of recorded runs whose method is unknown to this version."""
ON_GPU = "Recorded on a GPU"
"""Heading of runs recorded on a GPU, whatever their method."""


class Entry(msgspec.Struct, frozen=True):
    """``NAME.json`` of a recorded run: ``note`` is one sentence on what to watch, ``rehearsals`` counts the earlier runs of a
    method with a memory."""

    title: str
    note: str = ""
    rehearsals: int = 0


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``index.json``: the runs with which the tabs open, by modality, and the ``pair`` with which *Compare* opens."""

    first: dict[str, str] = {}
    pair: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recording:
    """One recorded run. Its run and end records are read without the steps, which are most of a file."""

    name: str
    title: str
    note: str
    path: Path
    rehearsals: int = 0

    @cached_property
    def text(self) -> str:
        """Text of the file, in the current version of the format. Raises BadInput when it is missing, BadTrace when it is of an
        older version and breaks the schema."""
        content = self._bytes()
        if content.startswith(b'{"v":%d,' % SCHEMA_VERSION):
            return content.decode("utf-8")
        return "".join(f"{line}\n" for line in traces.rewritten(content))

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
        return traces.read(self._bytes())

    def _bytes(self) -> bytes:
        try:
            return traces.unpacked(self.path)
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
        index, self.recordings = Index(), dict[str, Recording]()
        for file in sorted(folder.glob("*.json")):
            try:
                if file.stem == "index":
                    index = msgspec.json.decode(file.read_bytes(), type=Index)
                    continue
                entry = msgspec.json.decode(file.read_bytes(), type=Entry)
            except ValueError as error:
                raise BadTrace(f"{file.name} describes no recorded run: {error}.") from None
            plain = file.with_suffix(traces.SUFFIX)
            path = plain if plain.exists() else plain.with_name(f"{plain.name}.gz")
            self.recordings[file.stem] = Recording(file.stem, entry.title, entry.note, path, entry.rehearsals)
        self._first = index.first
        self.pair = index.pair if all(name in self.recordings for name in index.pair) else ()
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
        methods. Runs on a GPU are a group of their own."""
        family = {method.name: title for title, methods in families().items() for method in methods}
        rank = {name: at for at, name in enumerate(family)}
        grouped = Groups()
        for one in sorted(self.of(*modalities), key=lambda one: rank.get(one.run.method, len(rank))):
            heading = ON_GPU if one.run.device.startswith("cuda") else family.get(one.run.method, OTHERS)
            grouped.setdefault(heading, []).append((one.title, one.name))
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


MINE = "mine:"
"""Prefix of a stored run's name; its key follows. The name is private to one page; a link carries it once the run is shared."""


SESSION = "This session"
"""Heading of this session's runs."""
POOL = "pool"
"""Prefix of the names of the pool's threads."""
WORKERS = 2
"""Number of concurrent jobs. A parsed run takes ten times the memory of its text; more jobs gain nothing in one interpreter."""
WAITING = 64
"""Number of jobs that may wait, enough for two classes at once. One address may have half of them."""
SECONDS = 30.0
"""Maximum processor seconds for one file, several times what the largest valid one takes."""

LOST = "The file did not arrive whole. Choose it again."

Result = TypeVar("Result")


class Pool:
    """Jobs in order of arrival, one per key. Used from the event loop and from threads."""

    def __init__(self, workers: int = WORKERS, waiting: int = WAITING) -> None:
        self.most = workers + waiting
        self.jobs: dict[Hashable, Future[Any]] = {}
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=POOL)
        self._owners: Counter[str] = Counter()
        self._lock = threading.RLock()  # a job may be over before it is listed

    def submit(self, job: Callable[[], Result], key: Hashable = None, owner: str = "") -> Future[Result]:
        """Submit ``job`` and return its future, shared by all pending requests for the same ``key``. ``owner`` is the address
        of the request. Raises BadInput when the pool is full."""
        key = object() if key is None else key
        with self._lock:
            if key in self.jobs:
                return self.jobs[key]
            if len(self.jobs) >= self.most or (owner and self._owners[owner] >= max(1, self.most // 2)):
                raise BadInput(f"{len(self.jobs)} other files are being read or made just now. Try again in a minute.")
            future = self._threads.submit(job)
            self.jobs[key] = future
            self._owners[owner] += 1
            future.add_done_callback(lambda _: self._leave(key, owner))
            return future

    def _leave(self, key: Hashable, owner: str) -> None:
        with self._lock:
            self.jobs.pop(key, None)
            self._owners -= Counter([owner])

    async def do(self, job: Callable[[], Result], key: Hashable = None, owner: str = "") -> Result:
        """Await the result of ``job``. Raises its exceptions, and BadInput when the pool is full."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(job, key, owner)))  # others may await the same job

    def result(self, job: Callable[[], Result], key: Hashable = None) -> Result:
        """Return the result of ``job``, blocking the calling thread; inside a job of this pool, run it directly."""
        return job() if threading.current_thread().name.startswith(POOL) else self.submit(job, key).result()


@dataclass(frozen=True)
class Archive:
    """Recorded runs and stored runs under one naming scheme."""

    gallery: Gallery
    store: TraceStore
    pool: Pool = field(default_factory=Pool)
    """The only reader of stored runs."""
    seconds: float = SECONDS
    shared: SharedRuns = field(default_factory=lambda: SharedRuns(TraceStore(), Path(), 0))
    _known: dict[str, str] = field(default_factory=dict)
    """Names of the runs stored from files, by the digest of the file's content."""

    def text(self, name: str) -> str:
        """Return the trace file's text. Raises BadInput if no run has that name any more."""
        if name.startswith(MINE):
            return self.store.text(name.removeprefix(MINE))
        return self.gallery.get(name).text

    def trace(self, name: str) -> Trace:
        """Return the run as data."""
        if not name.startswith(MINE):
            return self.gallery.get(name).trace
        return self.pool.result(lambda: self.store.trace(name.removeprefix(MINE)), ("trace", name))

    async def of(self, names: Iterable[str], job: Callable[[], Result], owner: str = "") -> Result:
        """Await a ``job`` that reads these runs: in the pool if one of them is a stored run, else in a thread."""
        if any(name.startswith(MINE) for name in names):
            return await self.pool.do(job, owner=owner)
        return await asyncio.to_thread(job)

    def run(self, name: str) -> Run:
        """Return the run record, without the steps."""
        if not name.startswith(MINE):
            return self.gallery.get(name).run
        return outline(self.store.lines(name.removeprefix(MINE), 0, 1)).run

    def outline(self, name: str) -> Outline:
        """Return the run's outline: its run and end records and its counts."""
        if name.startswith(MINE):
            return self.pool.result(lambda: outline(self.store.lines(name.removeprefix(MINE))))
        return outlined(self.gallery.get(name).trace)

    def note(self, name: str) -> str:
        """Note on what to watch in a recorded run; empty for any other."""
        recording = self.gallery.recordings.get(name)
        return recording.note if recording else ""

    def feed(self, name: str) -> str:
        """Return the run's text for a stage; the stage itself fetches the lines of a stored run. Empty without a name, so that a
        page without recordings still opens."""
        if name.startswith(MINE):
            self.store.lines(name.removeprefix(MINE), 0, 0)  # raises if the run is no longer stored
            return control("recorded", name, follow=True, message="Fetching the run")
        note = self.note(name)
        return control("recorded", name, **{"watch": note} if note else {}) + self.text(name) if name else ""

    async def open(self, path: str | Path, owner: str = "") -> str:
        """Store the run in an uploaded file and return its name.

        Raises BadTrace naming the invalid line and field, and BadInput when the pool is full.
        """
        return await self._opened(await asyncio.to_thread(_digest, Path(path)), lambda: self._lines(Path(path)), owner)

    async def take(self, read: Callable[[], Trace], key: str, owner: str = "") -> str:
        """Store the run that ``read`` restores, in the pool, from the text ``key`` kept by a page. Raises like :meth:`open`."""
        digest = hashlib.sha256(f"kept {key}".encode("utf-8", "surrogatepass")).hexdigest()
        return await self._opened(digest, lambda: traces.lines(read()), owner)

    async def _opened(self, digest: str, read: Callable[[], list[str]], owner: str) -> str:
        def keep() -> str:
            self._known[digest] = MINE + self.store.new(read(), checked=True)
            return self._known[digest]

        for other, name in list(self._known.items()):
            if name.removeprefix(MINE) not in self.store:
                self._known.pop(other, None)
        return self._known[digest] if digest in self._known else await self.pool.do(keep, digest, owner)

    async def share(self, name: str, owner: str) -> str:
        """Keep a stored run for whoever has its link, and return until when. Raises BadInput with the reason for a refusal."""
        return await self.pool.do(lambda: self.shared.keep(name.removeprefix(MINE), owner), owner=owner)

    async def recall(self, name: str, owner: str) -> str:
        """Return the modality of the run in a link, a shared one of which is read back first. Raises BadInput if it is gone."""
        if name.startswith(MINE):
            await self.pool.do(lambda: self.shared.restore(name.removeprefix(MINE)), ("shared", name), owner)
        return self.run(name).modality

    def _lines(self, path: Path) -> list[str]:
        """Return the file's lines, checked. Raises BadInput, without its path, if it cannot be read or takes too long."""
        started, lines = time.thread_time(), list[str]()
        try:
            with path.open("rb") as file:
                content = file.read(MAX_FILE + 1)
        except (OSError, ValueError):
            raise BadInput(LOST) from None
        for line in traces.rewritten(content):
            lines.append(line)
            if time.thread_time() - started > self.seconds:
                raise BadInput(
                    f"Checking this file takes more than {self.seconds:g} seconds, the limit here. "
                    "`python -m specviz validate FILE` checks it on your own machine; record fewer steps or smaller trees."
                )
        return lines


def _digest(path: Path) -> str:
    """The file's SHA-256. Raises BadInput, without its path, if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        raise BadInput(LOST) from None


def title(run: Run) -> str:
    """One line that tells a session's runs apart."""
    prompt = " ".join(run.prompt.split())
    temperature = f", T = {run.sampling.temperature:g}" if run.sampling.temperature else ""
    return f"{run.title}{temperature} · {prompt[:40]}{'…' if len(prompt) > 40 else ''}"


def join(runs: Titles, name: str, run: Run) -> bool:
    """Add a run to this session's. Returns False if it is there already."""
    if any(name == listed for _, listed in runs):
        return False
    alike = sum(listed.startswith(title(run)) for listed, _ in runs)  # a drop-down tells entries apart by their titles
    runs.append((f"{title(run)} ({alike + 1})" if alike else title(run), name))
    return True


def choices(archive: Archive, runs: Titles) -> Titles:
    """This session's runs, newest first, then the recorded ones: title and name of each."""
    return [entry for entries in grouped(archive, runs).values() for entry in entries]


def grouped(archive: Archive, runs: Titles, *modalities: str) -> Groups:
    """The entries of :func:`choices` under headings: this session's runs, then the method families."""
    mine = {SESSION: list(reversed(runs))} if runs else {}
    return mine | archive.gallery.by_family(*modalities)
