"""The short way for a live run's lines: all of them, in order, to the end, and only to who knows the run."""

from __future__ import annotations

import asyncio
import threading

from starlette.applications import Starlette
from starlette.testclient import TestClient

from specviz.trace.store import TraceStore
from specviz.ui.stream.sse import PATH, Tails, route


def going(*lines: str) -> tuple[Tails, str]:
    """A run that has written these lines so far."""
    tails = Tails(TraceStore(), every=0.001)
    key = tails.store.new(lines)
    tails.begin(key)
    return tails, key


def client(tails: Tails) -> TestClient:
    return TestClient(Starlette(routes=[route(tails)]))


def data(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


def test_lines_arrive_as_they_are_written_and_the_last_ones_before_the_goodbye() -> None:
    tails, key = going("one")

    def write() -> None:
        while not tails.watched(key):
            threading.Event().wait(0.001)
        for number in range(50):
            tails.store.append(key, f"line {number}")
        tails.end(key)

    writer = threading.Thread(target=write)
    writer.start()
    said = client(tails).get(f"/{PATH}/{key}").text
    writer.join()
    assert data(said) == ["one", *(f"line {number}" for number in range(50))]
    assert said.endswith("event: over\ndata:\n\n")


def test_a_reader_may_begin_in_the_middle() -> None:
    tails, key = going("one", "two", "three")

    async def first() -> str:
        reading = tails.read(key, 2)
        piece = await anext(reading)
        await reading.aclose()
        return piece

    assert asyncio.run(first()) == "data: three\n\n"


def test_who_reads_is_known_while_they_read() -> None:
    tails, key = going("one")

    async def seen() -> list[bool]:
        reading = tails.read(key, 0)
        before = tails.watched(key)
        await anext(reading)
        during = tails.watched(key)
        await reading.aclose()
        return [before, during, tails.watched(key)]

    assert asyncio.run(seen()) == [False, True, False]


def test_a_run_that_is_over_or_unknown_and_a_senseless_start_are_sent_away() -> None:
    tails, key = going("one")
    asked = client(tails)
    assert asked.get(f"/{PATH}/{key}?from=-1").status_code == 204
    assert asked.get(f"/{PATH}/nobody").status_code == 204
    tails.end(key)
    assert asked.get(f"/{PATH}/{key}").status_code == 204


def test_a_run_the_store_has_let_go_of_ends_the_reading() -> None:
    tails, key = going("one")
    tails.store.drop(key)
    assert client(tails).get(f"/{PATH}/{key}").text == ""
