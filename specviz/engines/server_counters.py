"""A server's own counters of speculation (``/metrics``): read once, or sampled while an answer arrives."""

from __future__ import annotations

import re
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate

import httpx

from specviz.trace.notes.models import CounterSample, CountersNote
from specviz.trace.schema import Note, Trace

CONNECT_SECONDS = 5.0
SILENT_SECONDS = 60.0
"""Longest that a server may say nothing in the middle of an answer."""
SAMPLE_SECONDS = 0.25
"""Between two looks at the counters."""
MOST_SAMPLES = 2000
_COUNTER = re.compile(
    r"^(?:vllm|sglang):spec_decode_num_(drafts|draft_tokens|accepted_tokens)(?:_total)?(?:\{[^}]*\})? ([0-9.e+]+)", re.M
)
_BY_PLACE = re.compile(
    r'^vllm:spec_decode_num_accepted_tokens_per_pos(?:_total)?\{[^}]*position="(\d+)"[^}]*\} ([0-9.e+]+)', re.M
)


@dataclass(frozen=True)
class Counters:
    """A server's own counts since it started: drafts, drafted and accepted tokens, and accepted ones by place in the draft."""

    drafts: int
    drafted: int
    accepted: int
    by_place: tuple[int, ...]

    def since(self, before: Counters) -> Counters:
        """What was counted after ``before``."""
        width = max(len(self.by_place), len(before.by_place))
        ours, theirs = (counts + (0,) * (width - len(counts)) for counts in (self.by_place, before.by_place))
        by_place = tuple(now - then for now, then in zip(ours, theirs, strict=True))
        return Counters(self.drafts - before.drafts, self.drafted - before.drafted, self.accepted - before.accepted, by_place)


def counters(url: str, key: str = "") -> Counters | None:
    """The server's counts of speculation, None where it has none."""
    with connection(key) as client:
        return _read(client, url)


def _read(client: httpx.Client, url: str) -> Counters | None:
    try:
        response = client.get(f"{url}/metrics")
    except httpx.HTTPError:
        return None
    return read_counters(response.text) if response.status_code == 200 else None


def read_counters(text: str) -> Counters | None:
    """Counts in Prometheus' text format, summed over engines; None where there are none."""
    found: dict[str, float] = {}
    for name, value in _COUNTER.findall(text):
        found[name] = found.get(name, 0.0) + float(value)
    places: dict[int, float] = {}
    for place, value in _BY_PLACE.findall(text):
        places[int(place)] = places.get(int(place), 0.0) + float(value)
    if not found:
        return None
    by_place = tuple(int(places.get(place, 0)) for place in range(max(places, default=-1) + 1))
    return Counters(*(int(found.get(name, 0)) for name in ("drafts", "draft_tokens", "accepted_tokens")), by_place)


class Sampler:
    """Counts since ``start``, sampled until ``stop`` by a thread of its own. A server without counters is looked at once.

    They are of all that the server does meanwhile, other requests included.
    """

    def __init__(self, url: str, key: str = "") -> None:
        self._url, self._key = url, key
        self._over = threading.Event()
        self._before: Counters | None = None
        self._thread: threading.Thread | None = None
        self._began = self._told = 0
        self.samples: list[CounterSample] = []

    def start(self) -> int:
        """Look for the first time; the moment that samples count from, on the clock of ``time.perf_counter_ns``."""
        self._before = counters(self._url, self._key)
        self._began = time.perf_counter_ns()
        if self._before is not None:
            self._thread = threading.Thread(target=self._work, name="specviz counters", daemon=True)
            self._thread.start()
        return self._began

    def news(self) -> tuple[Note, ...]:
        """A note of the samples that came since the last call; none before the first sample."""
        fresh = self.samples[self._told :]
        self._told += len(fresh)
        return (CountersNote(fresh).to_note(),) if self._told else ()

    def stop(self) -> None:
        """Look once more, and no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(CONNECT_SECONDS)

    def _work(self) -> None:
        with connection(self._key, CONNECT_SECONDS) as client:
            while not self._over.wait(SAMPLE_SECONDS):
                if not self._sample(client):
                    return
            self._sample(client)

    def _sample(self, client: httpx.Client) -> bool:
        """Keep what has changed; whether there is somebody to ask again."""
        now = _read(client, self._url)
        if now is None or self._before is None or len(self.samples) >= MOST_SAMPLES:
            return False
        counts = now.since(self._before)
        if counts.drafts > (self.samples[-1].drafts if self.samples else 0):
            spent = (time.perf_counter_ns() - self._began) / 1e6
            self.samples.append(CounterSample(round(spent, 1), counts.drafts, counts.by_place))
        return True


def with_samples(trace: Trace, samples: Sequence[CounterSample]) -> Trace:
    """The trace with each sample on the step in whose time it was taken, those after the last step on that. Steps between two
    samples have a note without one, so that the drawing of all so far stays in sight."""
    if not samples or not trace.steps:
        return trace
    ends = list(accumulate(step.time.total / 1e6 for step in trace.steps))
    of: dict[int, list[CounterSample]] = {}
    for sample in samples:
        of.setdefault(min(bisect_left(ends, sample.ms), len(ends) - 1), []).append(sample)
    first = min(of)
    steps = [
        replace(step, notes=(*step.notes, CountersNote(of.get(place, [])).to_note())) if place >= first else step
        for place, step in enumerate(trace.steps)
    ]
    return replace(trace, steps=tuple(steps))


@contextmanager
def connection(key: str, silence: float | None = None) -> Iterator[httpx.Client]:
    """A client that follows no redirection and no proxy of the environment: it talks to the address that was named."""
    timeout = httpx.Timeout(silence or SILENT_SECONDS, connect=CONNECT_SECONDS)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(timeout=timeout, follow_redirects=False, trust_env=False, headers=headers) as client:
        yield client
