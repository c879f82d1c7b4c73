"""A server's counters of speculative decoding (``/metrics``), read once or sampled while a response arrives."""

from __future__ import annotations

import re
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, zip_longest

from specviz.interop.client import CONNECT_SECONDS, Cancelled, Client
from specviz.trace.notes.models import CounterSample, ServedCountersNote
from specviz.trace.schema import EXACT, Note, Trace

SAMPLE_SECONDS = 0.25
"""Seconds between two samples of the counters."""
MOST_SAMPLES = 2000
MOST_PLACES = 256
"""Maximum number of draft positions that are counted separately."""
MOST_VALUES = 8192
"""Maximum number of values in one note."""
MOST_LINE = 16 << 10
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_COUNTED = re.compile(r"(?:vllm|sglang):spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)(?:_total)?")


def prometheus(text: str, names: re.Pattern[str]) -> Iterator[tuple[re.Match[str], Mapping[str, str], int]]:
    """Yield name match, labels and value of samples in Prometheus' text format whose name matches ``names``.

    Lines whose value is not a count are skipped.
    """
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line[:MOST_LINE])
        if found and (name := names.fullmatch(found[1])) and (value := whole(found[3])) is not None:
            labels = {label: value.replace('\\"', '"').replace("\\\\", "\\") for label, value in _LABEL.findall(found[2] or "")}
            yield name, labels, value


def whole(text: str) -> int | None:
    """Parse a count in another program's output. Returns None if the text is not a count."""
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if 0 <= value <= EXACT else None


@dataclass(frozen=True)
class Counters:
    """A server's counts since it started: drafts, drafted tokens, and accepted tokens in total and by draft position."""

    drafts: int
    drafted: int
    accepted: int
    by_place: tuple[int, ...]

    def since(self, before: Counters) -> Counters:
        """Return the increase since ``before``."""
        by_place = zip_longest(self.by_place, before.by_place, fillvalue=0)
        return Counters(
            self.drafts - before.drafts, self.drafted - before.drafted, self.accepted - before.accepted,
            tuple(now - then for now, then in by_place),
        )  # fmt: skip


def counters(url: str, key: str = "", cancel: threading.Event | None = None) -> Counters | None:
    """Read the server's counts of speculative decoding. Returns None if there are none or the server does not answer."""
    try:
        with Client(url, key, cancel) as client:
            return read_counters(client.metrics(CONNECT_SECONDS))
    except Cancelled:
        return None


def read_counters(text: str) -> Counters | None:
    """Parse counts in Prometheus' text format, summed over engines. Returns None if there are none."""
    found, places = Counter[str](), Counter[int]()
    for name, labels, value in prometheus(text, _COUNTED):
        if name[1] != "accepted_tokens_per_pos":
            found[name[1]] += value
        elif (place := whole(labels.get("position", ""))) is not None and place < MOST_PLACES:
            places[place] += value
    if not found and not places:
        return None
    by_place = tuple(places[place] for place in range(max(places, default=-1) + 1))
    return Counters(found["drafts"], found["draft_tokens"], found["accepted_tokens"], by_place)


class Sampler:
    """Counts since ``began``, sampled by a separate thread until the ``with`` block ends.

    The counts include other requests that the server handles in that time. A server without counts is queried only once.
    """

    def __init__(self, url: str, key: str, cancel: threading.Event) -> None:
        self._over = threading.Event()
        self._reported = 0
        self.samples: list[CounterSample] = []
        read = partial(counters, url, key, cancel)
        before = read()
        self.began = time.perf_counter_ns()
        """Zero of the samples' times, on the clock of ``time.perf_counter_ns``."""
        self._thread: threading.Thread | None = None
        if before is not None:
            self._thread = threading.Thread(target=self._work, args=(read, before), name="specviz counters", daemon=True)
            self._thread.start()

    def __enter__(self) -> Sampler:
        return self

    def news(self) -> tuple[Note, ...]:
        """Return a note with the samples since the last call, or () before the first sample."""
        fresh = self.samples[self._reported :]
        self._reported += len(fresh)
        return (_note(fresh),) if self._reported else ()

    def __exit__(self, *problem: object) -> None:
        """Take a last sample and stop. After ``cancel`` no sample is taken, so this does not wait."""
        self._over.set()
        if self._thread:
            self._thread.join(CONNECT_SECONDS)

    def _work(self, read: Callable[[], Counters | None], before: Counters) -> None:
        """Sample until the server stops answering, and once more at the end. Only changed counts are stored."""
        over = False
        while not over and len(self.samples) < MOST_SAMPLES:
            over = self._over.wait(SAMPLE_SECONDS)
            if (now := read()) is None:
                return
            counts = now.since(before)
            if counts.drafts > (self.samples[-1].drafts if self.samples else 0):
                spent = (time.perf_counter_ns() - self.began) / 1e6
                self.samples.append(CounterSample(round(spent, 1), counts.drafts, counts.by_place))


def _note(samples: Sequence[CounterSample]) -> Note:
    """Return a note with the latest samples, as many as fit."""
    most = MOST_VALUES // max((len(sample.accepted) + 8 for sample in samples), default=1)
    return ServedCountersNote(samples[-most:]).to_note()


def with_samples(trace: Trace, samples: Sequence[CounterSample]) -> Trace:
    """Return the trace with each sample on the step during which it was taken, or on the last step if taken later.

    Steps between two samples get an empty note, which keeps the samples so far on screen.
    """
    if not samples or not trace.steps:
        return trace
    ends = list(accumulate(step.time.total / 1e6 for step in trace.steps))
    of = defaultdict[int, list[CounterSample]](list)
    for sample in samples:
        of[min(bisect_left(ends, sample.ms), len(ends) - 1)].append(sample)
    first = min(of)
    steps = [
        step.replace(notes=(*step.notes, _note(of[place]))) if place >= first else step for place, step in enumerate(trace.steps)
    ]
    return trace.replace(steps=tuple(steps))
