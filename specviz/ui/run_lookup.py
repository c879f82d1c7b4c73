"""Lookup of the run that a stage shows, by name: a recorded one of the app, or one of this session's in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from specviz.errors import BadInput
from specviz.trace.schema import Run, Trace
from specviz.trace.store import Outline, TraceStore, outline, outlined
from specviz.ui.stream import feed
from specviz.ui.stream.pool import Pool, Result
from specviz.ui.widgets.gallery import Gallery, Recording

MINE = "mine:"
"""Prefix of the key of a run in the store. Such a name is private to one page, so no link carries it."""


SESSION = "This session"
"""Heading of this session's runs."""


@dataclass(frozen=True)
class Archive:
    """Recorded runs and kept runs under one naming scheme."""

    gallery: Gallery
    store: TraceStore
    pool: Pool = field(default_factory=Pool)
    """The only reader of kept runs."""

    def text(self, name: str) -> str:
        """Return the trace file's text. Raises BadInput when no run has that name any more."""
        if name.startswith(MINE):
            return self.store.text(name.removeprefix(MINE))
        return self._recorded(name).text

    def _recorded(self, name: str) -> Recording:
        if not name:
            raise BadInput("There is no run to show yet: run something, or choose a recorded run.")
        return self.gallery.get(name)

    def trace(self, name: str) -> Trace:
        """Return the run as data."""
        if not name.startswith(MINE):
            return self._recorded(name).trace
        return self.pool.result(lambda: self.store.trace(name.removeprefix(MINE)), ("trace", name))

    async def of(self, names: Iterable[str], job: Callable[[], Result], owner: str = "") -> Result:
        """Await a ``job`` that reads these runs: in the pool if one of them is a kept run, else in a thread."""
        if any(name.startswith(MINE) for name in names):
            return await self.pool.do(job, owner=owner)
        return await asyncio.to_thread(job)

    def run(self, name: str) -> Run:
        """Return the run record, without the steps."""
        if not name.startswith(MINE):
            return self._recorded(name).run
        return outline(self.store.lines(name.removeprefix(MINE), 0, 1)).run

    def outline(self, name: str) -> Outline:
        """Return the run's outline: its run and end records and its counts."""
        if name.startswith(MINE):
            return self.pool.result(lambda: outline(self.store.lines(name.removeprefix(MINE))))
        return outlined(self._recorded(name).trace)

    def note(self, name: str) -> str:
        """Note on what to watch in a recorded run; empty for any other."""
        recording = self.gallery.recordings.get(name)
        return recording.watch if recording else ""

    def rehearsals(self, name: str) -> int:
        """Number of runs made before a recorded one was kept; 0 for any other."""
        recording = self.gallery.recordings.get(name)
        return recording.rehearsals if recording else 0

    def feed(self, name: str) -> str:
        """Return the run's feed for a stage, which follows a kept run. Empty without a name, so that a page without recordings
        still opens."""
        if name.startswith(MINE):
            self.store.lines(name.removeprefix(MINE), 0, 0)  # raises if the run is not kept any more
            return feed.control("recorded", name, follow=True, message="Fetching the run")
        return feed.recorded(name, self.text(name), self.note(name)) if name else ""


def title(trace: Trace) -> str:
    """One line that tells runs of a session apart."""
    run = trace.run
    prompt = " ".join(run.prompt.split())
    temperature = f", T = {run.sampling.temperature:g}" if run.sampling.temperature else ""
    return f"{run.title}{temperature} · {prompt[:40]}{'…' if len(prompt) > 40 else ''}"


def choices(archive: Archive, runs: list[tuple[str, str]], *modalities: str) -> list[tuple[str, str]]:
    """This session's runs, newest first, then the recorded ones of these modalities: title and name of each."""
    return [*reversed(runs), *archive.gallery.choices(*modalities)]


def grouped(archive: Archive, runs: list[tuple[str, str]], *modalities: str) -> dict[str, list[tuple[str, str]]]:
    """The entries of :func:`choices` under headings: this session's runs, then the method families."""
    mine = {SESSION: list(reversed(runs))} if runs else {}
    return mine | archive.gallery.by_family(*modalities)
