"""A live run: it waits, streams, keeps what it wrote, and gives its place back however it ends."""

import json
import math
import threading
from dataclasses import dataclass, replace
from itertools import islice

import pytest

from specviz.engine.stop import Stop, computing, waiting
from specviz.errors import SpecvizError
from specviz.pipeline.request import Request
from specviz.trace import store
from specviz.trace.store import TraceStore
from specviz.ui import access
from specviz.ui.access import Caller, PageSession
from specviz.ui.stream import live
from specviz.ui.stream.live import Frame, RunQueue, RunStream
from specviz.ui.stream.sse import EventStreams
from tests.support.fakes.ui import FakeEngine, Refused

REQUEST = Request(method="stand", prompt="Say something.", baseline=True)


@dataclass
class Room:
    """An engine, its line and the store behind it."""

    engine: FakeEngine
    waiting: int = 2

    def __post_init__(self):
        self.queue = RunQueue(self.waiting)
        self.store = TraceStore()
        self.streams = EventStreams(self.store)
        self.live = RunStream(self.engine, self.queue, self.streams)

    def free(self):
        """Whether the next run could start at once (the engine's thread gives the place back a moment after the last frame)."""
        ticket = self.queue.join()
        try:
            return ticket.wait(10)
        finally:
            ticket.leave()


def test_a_run_streams_and_its_file_is_kept():
    room = Room(FakeEngine(steps=8))
    frames = list(room.live.run(PageSession(), REQUEST))
    last = frames[-1]
    assert last.trace.end.baseline is not None
    kept = store.read(room.store.text(last.key).encode())
    assert kept == last.trace and len(kept.steps) == 8
    assert room.free()


def test_the_page_is_told_how_the_run_is_and_never_its_lines():
    frames = list(Room(FakeEngine(steps=40, pace=0.01)).live.run(PageSession(), REQUEST))
    feeds = [frame.feed or "" for frame in frames]
    assert all(feed.count("\n") == 1 and '"seq":' not in feed for feed in feeds)
    assert len(frames) <= 6 and ['"follow":true' in feed for feed in feeds] == [frame.begun for frame in frames]


def test_the_stage_knows_while_the_one_by_one_run_is_timed_and_when_that_was_stopped():
    room, page = Room(FakeEngine(steps=3, before_baseline=0.4)), PageSession()
    frames = list(room.live.run(page, REQUEST))
    assert [frame.timing for frame in frames if frame.trace and frame.trace.end] == [True, False]
    stopped = []
    for frame in room.live.run(page, REQUEST):
        stopped.append(frame)
        if frame.timing:
            page.stop()
    assert any(frame.timing for frame in stopped) and not stopped[-1].timing
    assert '"baseline":""' in (stopped[-1].feed or "")


def test_no_line_can_be_read_before_there_is_a_step_to_show():
    """The stage keeps the run that is on it until this one's first line comes, so that has to bring a step along."""
    room, before = Room(FakeEngine(steps=3, pace=0.1)), 0
    for frame in room.live.run(PageSession(), REQUEST):
        lines = room.store.lines(frame.key)
        assert len(lines) >= 2 if frame.begun else not lines and frame.trace is None
        assert before or not frame.begun or (frame.trace.steps)
        before += frame.begun
    assert before


def test_a_run_stopped_before_its_first_step_leaves_nothing_behind():
    room, page = Room(FakeEngine(pace=60.0, reading=("Reading the prompt: 5 of 9 tokens", 0.5))), PageSession()
    frames = []
    for frame in room.live.run(page, REQUEST):
        frames.append(frame)
        if '"message":"Reading the prompt: 5 of 9 tokens","fraction":0.5' in frame.feed:
            page.stop()
    assert frames[-1].failure == "Stopped before the first step; nothing was run." and not frames[-1].begun
    assert len(room.store._entries) == 0 and room.free()


def test_a_stop_ends_the_run_and_keeps_its_steps():
    room, page = Room(FakeEngine(steps=400, pace=0.02)), PageSession()
    last = None
    for frame in room.live.run(page, REQUEST):
        last = frame
        if frame.begun:
            threading.Timer(0.1, page.stop).start()
    assert last.trace.end.reason == "cancelled" and 2 < len(last.trace.steps) < 60
    assert room.engine.cancelled == 1 and room.free()


def test_waiting_runs_are_told_how_many_are_ahead_and_can_give_up():
    room, page = Room(FakeEngine()), PageSession()
    other = room.queue.join()
    frames = room.live.run(page, REQUEST)
    assert "1 run is ahead of yours" in (next(frames).feed or "")
    page.stop()
    assert "Stopped while waiting" in list(frames)[-1].failure
    assert len(room.store._entries) == 0
    other.leave()
    assert room.free()


def test_a_run_whose_reader_never_came_gives_its_place_back_and_is_not_run(monkeypatch):
    monkeypatch.setattr(access, "COMING_SECONDS", 0.2)
    room = Room(FakeEngine())
    frames = list(room.live.run(PageSession(), REQUEST, Caller(hears=lambda: False)))
    assert len(frames) == 1 and "has disconnected" in frames[0].failure
    assert room.engine.begun == 0 and len(room.store._entries) == 0 and room.free()


def test_a_waiting_run_whose_reader_left_gives_its_place_back(monkeypatch):
    monkeypatch.setattr(access, "LEAVING_SECONDS", 0.1)
    room, there = Room(FakeEngine()), [True]
    room.queue.join()
    frames = room.live.run(PageSession(), REQUEST, Caller(hears=lambda: there[0]))
    next(frames)
    assert room.queue.behind == 1
    there[0] = False
    assert "has disconnected" in list(frames)[-1].failure
    assert room.queue.behind == 0 and room.engine.begun == 0


def test_a_run_whose_reader_left_ends_though_it_says_nothing(monkeypatch):
    monkeypatch.setattr(access, "LEAVING_SECONDS", 0.1)
    room, there = Room(FakeEngine(steps=2, pace=1.5)), [True]
    for frame in room.live.run(PageSession(), REQUEST, Caller(hears=lambda: there[0])):
        there[0] = there[0] and not frame.begun
    assert room.free() and room.engine.cancelled == 1


def test_a_run_starts_once_its_reader_is_there():
    room, looks = Room(FakeEngine(steps=3)), iter([False, False, False])
    frames = list(room.live.run(PageSession(), REQUEST, Caller(hears=lambda: next(looks, True))))
    assert len(frames[-1].trace.steps) == 3


def test_a_run_over_its_time_ends_with_what_it_has_and_says_why():
    list(
        Room(FakeEngine(steps=2)).live.run(PageSession(), REQUEST)
    )  # what a first run imports is no part of the second one's time
    room = Room(FakeEngine(steps=400, pace=0.02))
    room.live.seconds = 1
    # A frame that only takes the wait for the baseline back may follow.
    last = [frame for frame in room.live.run(PageSession(), REQUEST) if frame.trace is not None][-1]
    assert (last.trace.end.reason, last.trace.end.message) == ("time_limit", "A run may take 1 s here.")
    assert len(last.trace.steps) < 400 and room.free()


def test_while_many_wait_a_run_is_short_and_says_so(monkeypatch):
    monkeypatch.setattr(live, "TELL_SECONDS", 0.0)
    room = Room(FakeEngine(steps=3), waiting=live.CROWD + 1)
    first = room.queue.join()
    frames = room.live.run(PageSession(), replace(REQUEST, max_new_tokens=96))
    assert "While so many runs wait" not in (next(frames).feed or "")
    for _ in range(live.CROWD):
        room.queue.join()
    assert "While so many runs wait, each is limited to 32 tokens and 5 s." in (next(frames).feed or "")
    first.leave()
    trace = list(frames)[-1].trace
    assert room.engine.asked[0].max_new_tokens == 32
    assert "limited to 32 tokens instead of 96" in trace.run.warnings[-1]


def test_the_limit_follows_how_many_wait():
    room = Room(FakeEngine(), waiting=live.CROWD + 1)
    assert room.live.limit()[0] == math.inf
    room.live.seconds = 120
    assert room.live.limit() == (120.0, "A run may take 120 s here.")
    tickets = [room.queue.join() for _ in range(live.CROWD + 1)]
    assert room.live.limit() == (live.CROWD_SECONDS, "While 4 runs waited, the time limit was 5 s.")
    tickets.pop().leave()
    assert room.live.limit()[0] == 120.0


def test_a_page_that_waits_is_told_only_what_is_new(monkeypatch):
    monkeypatch.setattr(live, "TELL_SECONDS", 0.0)
    monkeypatch.setattr(live, "WAIT_SECONDS", 0.01)
    room = Room(FakeEngine(steps=2))
    other = room.queue.join()
    frames = room.live.run(PageSession(), REQUEST)
    assert "1 run is ahead of yours" in (next(frames).feed or "")
    threading.Timer(0.5, other.leave).start()
    after = next(frames)
    assert "ahead of yours" not in (after.feed or ""), "the next word is the engine's, however often it looked"
    frames.close()


def test_a_full_line_changes_nothing():
    room, page = Room(FakeEngine(), waiting=0), PageSession()
    room.queue.join()
    with pytest.raises(SpecvizError):
        next(room.live.run(page, REQUEST))
    assert page.cancel is None and len(room.store._entries) == 0


def test_a_run_that_breaks_off_keeps_its_steps():
    room = Room(FakeEngine(breaks=Refused("The disk is full; make room."), breaks_at=5))
    last = list(room.live.run(PageSession(), REQUEST))[-1]
    assert last.failure == "The disk is full; make room."
    assert len(last.trace.steps) == 5 and last.trace.end is None
    assert "The disk is full" in last.feed


def test_a_second_run_of_a_page_ends_the_first():
    room, page = Room(FakeEngine(steps=600, pace=0.01)), PageSession()
    first = room.live.run(page, REQUEST)
    begun = next(first)
    room.engine.steps = 3
    second = list(room.live.run(page, REQUEST))
    assert len(second[-1].trace.steps) == 3
    assert not page.current(begun.cancel) and page.current(second[-1].cancel)
    assert room.engine.most_running == 1


def test_loading_that_takes_long_gives_its_place_back_only_while_others_wait():
    """An engine that fetches a model until it is told that it may not."""
    wanted = threading.Event()

    def fetching(request, memory, cancel, progress):
        while True:
            progress("Fetching", None)
            wanted.set()
            cancel.wait(0.02)
        yield from ()

    room = Room(FakeEngine())
    room.live = RunStream(fetching, room.queue, room.streams, preparing=0.2)
    frames = []
    thread = threading.Thread(target=lambda: frames.extend(room.live.run(PageSession(), REQUEST)))
    thread.start()
    assert wanted.wait(10)
    thread.join(0.6)
    assert thread.is_alive()
    behind = room.queue.join()
    thread.join(20)
    assert not thread.is_alive() and "took more than the 0.2 s allowed while other runs wait" in frames[-1].failure
    assert behind.wait(10)
    behind.leave()


def deaf(kind, wait, lock):
    """An engine whose thread hears of no stop: it computes, or waits for a network, before its first step or behind it."""

    def stream(request, memory, cancel, progress):
        progress("Starting the engine", None)
        steps = FakeEngine(steps=2)(request, memory, Stop(), lambda message, share: None)
        with computing(lock, progress):
            if "behind" in kind:
                yield from islice(steps, 2)
            if "network" in kind:
                with waiting():
                    wait.wait(60)
            else:
                wait.wait(60)
            yield from steps

    return stream


@pytest.mark.parametrize("kind", ["network", "computing", "network behind a step", "computing behind a step"])
@pytest.mark.parametrize("end", ["stop", "limit", "left"])
def test_a_run_whose_thread_ignores_its_end_gives_its_place_back(kind, end, monkeypatch):
    monkeypatch.setattr(live, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.1)
    room, page, wait, lock = Room(FakeEngine()), PageSession(), threading.Event(), threading.Lock()
    room.live.stream = deaf(kind, wait, lock)
    frames = room.live.run(page, replace(REQUEST, baseline=False))
    shown = [next(frames)]
    while not (shown[-1].begun if "behind" in kind else page.cancel):
        shown.append(next(frames))
    if end == "left":
        frames.close()
    elif end == "limit":
        room.live.seconds = 0.001
        page.cancel.begin()
    else:
        page.stop()
    shown += list(frames)
    assert room.free()
    if end != "left":
        last = shown[-1]
        if "behind" in kind:
            assert last.trace.end.reason == ("cancelled" if end == "stop" else "time_limit")
            assert store.read(room.store.text(last.key).encode()) == last.trace
        else:
            assert last.failure == (
                "Stopped before the first step; nothing was run." if end == "stop" else "A run may take 0.001 s here."
            )
    # The next one begins while the thread of the first still waits; where that computes, it waits for it and says so.
    room.live.seconds, room.live.stream = None, deaf("", open_event(), lock)
    told = []
    for frame in room.live.run(PageSession(), replace(REQUEST, baseline=False)):
        told.append(frame.feed or "")
        if "Waiting for a stopped run" in told[-1]:
            wait.set()
    assert frame.trace.end is not None
    assert any("Waiting for a stopped run" in one for one in told) == ("computing" in kind)
    wait.set()


def open_event():
    """An event that nobody has to wait for."""
    event = threading.Event()
    event.set()
    return event


def test_stopping_is_said_at_once():
    wait, room, page = threading.Event(), Room(FakeEngine()), PageSession()
    room.live.stream = deaf("network", wait, threading.Lock())
    frames = room.live.run(page, REQUEST)
    next(frames)
    page.stop()
    assert '"message":"Stopping"' in (next(frames).feed or "")
    wait.set()
    frames.close()


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"message": "Loading", "fraction": 0.0}, {"message": "Loading", "fraction": 0.0}),
        ({"message": "Loading", "begun": True}, {"follow": True}),
        ({"begun": True, "failure": 'broke\n{"kind":"end"}'}, {"follow": True, "error": 'broke\n{"kind":"end"}'}),
    ],
)
def test_a_live_run_is_one_line_that_says_how_it_is_now(state, said):
    run = 'a"\n{"kind":"run"}'
    (line,) = Frame(Stop(), run, **state).feed.splitlines()
    assert json.loads(line) == {"kind": "stage", "mode": "live", "run": run, "baseline": "", **said}


def test_first_come_first_served():
    line = RunQueue(waiting=2)
    first, second, third = line.join(), line.join(), line.join()
    assert [len(one.ahead) for one in (first, second, third)] == [0, 1, 2]
    assert first.wait(0) and not second.wait(0)
    first.leave()
    assert second.wait(0) and third.ahead == [second]


def test_a_full_line_says_how_many_wait_and_what_to_do():
    line = RunQueue(waiting=1)
    line.join()
    waiting = line.join()
    with pytest.raises(SpecvizError, match="1 run is waiting. Try again .* recorded runs"):
        line.join()
    waiting.leave()
    assert len(line.join().ahead) == 1


def test_whoever_gives_up_lets_the_next_one_through():
    line = RunQueue(waiting=4)
    first, second, third = line.join(), line.join(), line.join()
    second.leave()
    second.leave()
    first.leave()
    assert third.wait(0)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_the_wait_is_told_by_how_long_recent_runs_took():
    clock = Clock()
    line = RunQueue(waiting=4, clock=clock)
    first, second, third = line.join(), line.join(), line.join()
    assert (first.seconds, second.seconds) == (0.0, None), "nothing is known before the first run"
    for took in (4.0, 6.0, 60.0):
        done = first
        done.started = clock.now
        clock.now += took
        done.leave()
        first, second, third = second, third, line.join()
    assert second.seconds == 6.0 and third.seconds == 12.0
    first.started = clock.now
    clock.now += 5.0
    assert third.seconds == 7.0, "what has gone by of the run in front counts"
    clock.now += 50.0
    assert third.seconds == 11.0, "one that takes long is judged by those that took longer"
    clock.now += 50.0
    assert third.seconds is None, "none took as long, so nobody can know"


def test_a_place_that_was_given_up_while_waiting_says_nothing_about_durations():
    line = RunQueue(waiting=4)
    line.join().leave()
    line.join()
    assert line.join().seconds is None
