"""The one way of a run's lines: all of them, in order, live or afterwards, from any line on, and only to who knows the run."""

import asyncio
import threading

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from specviz.trace.store import TraceStore
from specviz.ui.stream import sse
from specviz.ui.stream.sse import PATH, EventStreams, route


def going(*lines):
    """A live run that has written these lines so far."""
    streams = EventStreams(TraceStore(), every=0.001)
    key = streams.begin()
    for line in lines:
        streams.store.append(key, line)
    return streams, key


def client(streams):
    return TestClient(Starlette(routes=[route(streams, lambda scope: "here")]))


def data(text):
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


def events(text):
    return [event for event in text.split("\n\n") if "data: " in event]


def test_lines_arrive_as_they_are_written_and_the_last_ones_before_the_goodbye():
    streams, key = going("one")

    def write():
        while not streams._open:
            threading.Event().wait(0.001)
        for number in range(50):
            streams.store.append(key, f"line {number}")
        streams.end(key)

    writer = threading.Thread(target=write)
    writer.start()
    said = client(streams).get(f"/{PATH}/{key}").text
    writer.join()
    assert data(said) == ["one", *(f"line {number}" for number in range(50)), ""]
    assert said.endswith("event: over\ndata: \n\n") and "id: 51\n" in said and not streams._open


@pytest.mark.parametrize(
    ("query", "headers"), [("?from=2", {}), ("", {"Last-Event-ID": "2"}), ("?from=0", {"Last-Event-ID": "2"})]
)
def test_a_reader_begins_anywhere_and_a_browser_that_comes_back_behind_what_it_got(query, headers):
    streams, key = going("one", "two", "three")
    streams.end(key)
    assert data(client(streams).get(f"/{PATH}/{key}{query}", headers=headers).text) == ["three", ""]


def test_a_run_that_is_over_is_read_whole_in_bounded_events(monkeypatch):
    monkeypatch.setattr(sse, "MOST_LETTERS", 1000)
    written = [*(f"{number:0400}" for number in range(2 * sse.MOST_LINES)), "x" * 5000, *map(str, range(2 * sse.MOST_LINES))]
    streams, key = going(*written)
    streams.end(key)
    said = client(streams).get(f"/{PATH}/{key}").text
    assert data(said) == [*written, ""]
    assert max(len(data(event)) for event in events(said)) == sse.MOST_LINES
    assert all(sum(map(len, data(event))) <= 1000 or len(data(event)) == 1 for event in events(said))


def test_a_run_the_store_has_let_go_of_is_told():
    streams, key = going("one")
    streams.store.drop(key)
    for one in (key, "nobody"):
        assert "no longer on the server" in client(streams).get(f"/{PATH}/{one}").text


@pytest.mark.parametrize("start", ["-1", "x", "1" * 5000, "²", ""])
def test_a_senseless_start_is_refused(start):
    streams, key = going("one")
    assert client(streams).get(f"/{PATH}/{key}?from={start}").status_code == 400


def test_one_address_has_a_bounded_number_of_streams_and_their_places_come_back():
    streams, key = going("one")
    streams.each = 2

    async def pieces():
        opened = [streams.read(key, 0, address) for address in ("a", "a", "a", "b")]
        found = []
        for reading in opened:
            first = (await anext(reading)).decode()
            found.append([first, (await anext(reading, b"")).decode()])
        for reading in opened:
            await reading.aclose()
        return found

    first, second, third, other = asyncio.run(pieces())
    assert first == second == other and "data: one" in first[1]
    assert third == [f"retry: {sse.BACK_MS}\n\n", ""], "its browser comes back later"
    assert not streams._open
