"""Recorded and stored runs by name, and the thread pool that reads stored runs.

A recorded run ships with the app: a trace file and ``NAME.json`` with title and note. Links name it by ``?trace=NAME``. A stored
run belongs to a session. The pool is bounded and keeps long reads out of Gradio's forty threads.
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
from msgspec.structs import replace

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
"""(title, name) of the entries of a drop-down."""
Groups = dict[str, Titles]
"""Entries by heading."""
OTHERS = "Other methods"
"""Heading of runs with an unknown method."""
ON_GPU = "Recorded on a GPU"
"""Heading of runs recorded on a GPU, whatever their method."""
REAL = "Real models"
"""Heading of runs whose generated program was executed."""
OPENING = control("recorded", "", message="Opening the run")
"""Value of a stage whose run is sent once its tab is opened."""
RACE, ONE_CLOCK = "race", "All methods on one prompt"
"""Folder of the recorded runs of one prompt, and their heading."""


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``index.json``: the first run shown, by modality, and the ``pair`` first shown in Compare."""

    first: dict[str, str] = {}
    pair: tuple[str, ...] = ()


class Recording(msgspec.Struct, frozen=True, dict=True):
    """One recorded run, with the contents of its ``NAME.json``. ``run`` and ``end`` are read without parsing the steps.

    ``note``: what to watch; ``rehearsals``: number of earlier runs that filled the memory; ``ran``: Python version that executed
    the generated program successfully.
    """

    title: str
    note: str = ""
    rehearsals: int = 0
    ran: str = ""
    name: str = ""
    path: Path = Path()

    @cached_property
    def text(self) -> str:
        """Text of the trace file in the current format. Raises BadInput if the file cannot be read.

        A file of an older version is validated and converted; BadTrace is raised if it is invalid.
        """
        content = self._bytes()
        if content.startswith(b'{"v":%d,' % SCHEMA_VERSION):
            return content.decode("utf-8")
        return "".join(f"{line}\n" for line in traces.rewritten(content))

    @cached_property
    def run(self) -> Run:
        """The run record. Raises BadTrace if the first line is not a run record."""
        record = self._record(self._bytes().partition(b"\n")[0])
        if not isinstance(record, Run):
            raise BadTrace(f"{self.path.name} does not begin with a run record.")
        return record

    @cached_property
    def end(self) -> End | None:
        """The end record, or None if the run is incomplete. Raises BadTrace if the last line is invalid."""
        record = self._record(self._bytes().rstrip(b"\n").rpartition(b"\n")[2])
        return record if isinstance(record, End) else None

    @cached_property
    def trace(self) -> Trace:
        """The trace. Raises BadTrace if the file is invalid."""
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
    """The recorded runs in a folder."""

    def __init__(self, folder: Path) -> None:
        index, self.recordings = Index(), dict[str, Recording]()
        for file in [*sorted(folder.glob("*.json")), *sorted(folder.glob(f"{RACE}/*.json"))]:
            try:
                if file.stem == "index":
                    index = msgspec.json.decode(file.read_bytes(), type=Index)
                    continue
                entry = msgspec.json.decode(file.read_bytes(), type=Recording)
            except ValueError as error:
                raise BadTrace(f"{file.name} describes no recorded run: {error}.") from None
            note = entry.note + f" This program runs: it passed its check under {entry.ran}." * bool(entry.ran)
            plain = file.with_suffix(traces.SUFFIX)
            path = plain if plain.exists() else plain.with_name(f"{plain.name}.gz")
            name = "-".join(file.relative_to(folder).with_suffix("").parts)
            self.recordings[name] = replace(entry, name=name, path=path, note=note)
        self._first = index.first
        self.pair = index.pair if all(name in self.recordings for name in index.pair) else ()
        self.default = self.first("text") or next(iter(self.recordings.values()), None)
        self.default_name = self.default.name if self.default else ""

    def get(self, name: str) -> Recording:
        """Return the recording called ``name``. Raises BadInput if ``name`` is empty or unknown."""
        if not name:
            raise BadInput("There is no run to show yet: run something, or choose a recorded run.")
        if name not in self.recordings:
            others = "choose one from the list" if self.recordings else "there is none here"
            raise BadInput(f"There is no recorded run {name[:60]!r}: {others}.")
        return self.recordings[name]

    def by_family(self, *modalities: str) -> Groups:
        """Return the recorded runs of these modalities (default: all), by method family; runs of real models and GPU runs have
        separate groups.
        """
        family = {method.name: title for title, methods in families().items() for method in methods}
        rank = {name: at for at, name in enumerate(family)}
        grouped = Groups()
        for one in sorted(self.of(*modalities), key=lambda one: rank.get(one.run.method, len(rank))):
            heading = ON_GPU if one.run.device.startswith("cuda") else REAL if one.ran else family.get(one.run.method, OTHERS)
            heading = ONE_CLOCK if one in self.race else heading
            grouped.setdefault(heading, []).append((one.title, one.name))
        return grouped

    @property
    def race(self) -> list[Recording]:
        """The recorded runs of one prompt by many methods, in the folder ``race``."""
        return [one for one in self.recordings.values() if one.path.parent.name == RACE]

    def of(self, *modalities: str) -> list[Recording]:
        """Return the recorded runs of these modalities (default: all)."""
        return [one for one in self.recordings.values() if not modalities or one.run.modality in modalities]

    def first(self, modality: str) -> Recording | None:
        """Return the recorded run first shown for a modality, or None."""
        return self.recordings.get(self._first.get(modality, "")) or next(iter(self.of(modality)), None)

    def of_method(self, method: str, *modalities: str) -> Recording | None:
        """Return the first recorded run of a method in these modalities (default: all), or None."""
        return next((one for one in self.of(*modalities) if one.run.method == method), None)


MINE = "mine:"
"""Prefix of a stored run's name, followed by the secret key in the store. Links carry the name only of a shared run."""


SESSION = "This session"
"""Heading of the session's runs."""
POOL = "pool"
"""Prefix of the thread names."""
WORKERS = 2
"""Number of threads. More would need much memory and gain nothing under the global interpreter lock."""
WAITING = 64
"""Maximum number of waiting jobs, enough for two classes. One address may have half of them."""
SECONDS = 30.0
"""Maximum CPU time in seconds for one file, several times that of the largest valid file."""

LOST = "The upload is incomplete. Choose the file again."

Result = TypeVar("Result")


class Pool:
    """Thread pool that runs jobs in order of arrival. Jobs with the same key are run once. Thread-safe."""

    def __init__(self, workers: int = WORKERS, waiting: int = WAITING) -> None:
        self.most = workers + waiting
        self.jobs: dict[Hashable, Future[Any]] = {}
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=POOL)
        self._owners: Counter[str] = Counter()
        self._lock = threading.RLock()  # reentrant: a finished job's callback runs in submit

    def submit(self, job: Callable[[], Result], key: Hashable = None, owner: str = "") -> Future[Result]:
        """Submit a job and return the future, or the future of a pending job with the same ``key``.

        ``owner``: address of the visitor. Raises BadInput if the pool is full.
        """
        key = object() if key is None else key
        with self._lock:
            if key in self.jobs:
                return self.jobs[key]
            if len(self.jobs) >= self.most or (owner and self._owners[owner] >= max(1, self.most // 2)):
                raise BadInput(f"The server is busy with {len(self.jobs)} other files. Try again in a minute.")
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
        """Submit a job and await the result. Raises BadInput if the pool is full."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(job, key, owner)))  # others may await the same job

    def result(self, job: Callable[[], Result], key: Hashable = None) -> Result:
        """Submit a job and block until the result is ready. Inside another job, the job runs directly."""
        return job() if threading.current_thread().name.startswith(POOL) else self.submit(job, key).result()


@dataclass(frozen=True)
class Archive:
    """Recorded and stored runs by name."""

    gallery: Gallery
    store: TraceStore
    pool: Pool = field(default_factory=Pool)
    """Pool in which stored runs are read."""
    seconds: float = SECONDS
    shared: SharedRuns = field(default_factory=lambda: SharedRuns(TraceStore(), Path(), 0))
    _known: dict[str, str] = field(default_factory=dict)
    """Names of uploaded runs by digest of the file."""

    def text(self, name: str) -> str:
        """Return the text of a run's trace file. Raises BadInput if the run does not exist."""
        if name.startswith(MINE):
            return self.store.text(name.removeprefix(MINE))
        return self.gallery.get(name).text

    def trace(self, name: str) -> Trace:
        """Return the trace of a run. Raises BadInput if the run does not exist."""
        if not name.startswith(MINE):
            return self.gallery.get(name).trace
        return self.pool.result(lambda: self.store.trace(name.removeprefix(MINE)), ("trace", name))

    async def of(self, names: Iterable[str], job: Callable[[], Result], owner: str = "") -> Result:
        """Await a ``job`` that reads these runs: in the pool if a stored run is among them, else in a thread."""
        if any(name.startswith(MINE) for name in names):
            return await self.pool.do(job, owner=owner)
        return await asyncio.to_thread(job)

    def run(self, name: str) -> Run:
        """Return the run record, without parsing the steps."""
        if not name.startswith(MINE):
            return self.gallery.get(name).run
        return outline(self.store.lines(name.removeprefix(MINE), 0, 1)).run

    def outline(self, name: str) -> Outline:
        """Return the outline of a run."""
        if name.startswith(MINE):
            return self.pool.result(lambda: outline(self.store.lines(name.removeprefix(MINE))))
        return outlined(self.gallery.get(name).trace)

    def note(self, name: str) -> str:
        """Return the note of a recorded run; empty for stored runs."""
        recording = self.gallery.recordings.get(name)
        return recording.note if recording else ""

    def feed(self, name: str) -> str:
        """Return the stage's value for a run; empty without a name. For a stored run, the stage fetches the lines."""
        if name.startswith(MINE):
            self.store.lines(name.removeprefix(MINE), 0, 0)  # raises BadInput if the run is no longer stored
            return control("recorded", name, follow=True, message="Fetching the run")
        note = self.note(name)
        return control("recorded", name, **{"watch": note} if note else {}) + self.text(name) if name else ""

    async def open(self, path: str | Path, owner: str = "") -> str:
        """Store the run of an uploaded file and return the name of the run.

        Raises BadTrace, with line and field, if the file is invalid, and BadInput if the pool is full.
        """
        return await self._opened(await asyncio.to_thread(_digest, Path(path)), lambda: self._lines(Path(path)), owner)

    async def take(self, read: Callable[[], Trace], key: str, owner: str = "") -> str:
        """Store the run that ``read`` parses from ``key``, the text kept by a page. Raises like :meth:`open`."""
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
        """Share a stored run and return the time of deletion as text. Raises BadInput if the run cannot be shared."""
        return await self.pool.do(lambda: self.shared.keep(name.removeprefix(MINE), owner), owner=owner)

    async def recall(self, name: str, owner: str) -> str:
        """Load the run of a link, if shared, and return the modality. Raises BadInput if the run does not exist."""

        def restored() -> str:
            self.shared.restore(name.removeprefix(MINE))
            return self.run(name).modality

        if name.startswith(MINE):
            return await self.pool.do(restored, ("shared", name), owner)
        return self.run(name).modality

    def _lines(self, path: Path) -> list[str]:
        """Return the validated lines of a file. Raises BadInput if reading fails or takes too long."""
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
                    f"Validating this file takes more than {self.seconds:g} seconds, the limit of this app. Run `python -m "
                    "specviz validate FILE` on your own machine, or record fewer steps or smaller trees."
                )
        return lines


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file. Raises BadInput, without the path, if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        raise BadInput(LOST) from None


def title(run: Run) -> str:
    """Return the title of a session's run in lists."""
    prompt = " ".join(run.prompt.split())
    temperature = f", T = {run.sampling.temperature:g}" if run.sampling.temperature else ""
    return f"{run.title}{temperature} · {prompt[:40]}{'…' if len(prompt) > 40 else ''}"


def join(runs: Titles, name: str, run: Run) -> bool:
    """Add a run to the session's runs. Returns False if the run is already listed."""
    if name in dict(runs).values():
        return False
    alike = sum(listed.startswith(title(run)) for listed, _ in runs)  # titles must be unique in a drop-down
    runs.append((f"{title(run)} ({alike + 1})" if alike else title(run), name))
    return True


def choices(archive: Archive, runs: Titles) -> Titles:
    """Return the session's runs, newest first, followed by the recorded runs."""
    return [entry for entries in grouped(archive, runs).values() for entry in entries]


def grouped(archive: Archive, runs: Titles, *modalities: str) -> Groups:
    """Return the entries of :func:`choices` by heading: the session, then the method families."""
    mine = {SESSION: list(reversed(runs))} if runs else {}
    return mine | archive.gallery.by_family(*modalities)
