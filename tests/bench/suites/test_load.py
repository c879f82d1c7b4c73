"""The load suite counts truly: who was served, refused, left or waited, and what the app was left with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specviz.bench import runner
from specviz.bench.kit import visitor
from specviz.bench.kit.report import Report
from specviz.bench.kit.visitor import Form, PressOutcome, Visitor
from specviz.bench.suites import load
from specviz.bench.suites.load import Classroom, Server
from tests.support.fakes.ui import FakeEngine, app
from tests.ui.test_page import served


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine(steps=4, pace=0.02)


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory, engine: FakeEngine) -> Iterator[Form]:
    built, url = served(app(tmp_path_factory.mktemp("app"), engine, max_waiting=2))
    yield Form(url)
    built.close()


@pytest.mark.slow
def test_a_visitor_sees_a_run_from_its_first_update_to_its_end(form: Form) -> None:
    seen = Visitor(form).press(load.SHORT)
    assert seen.served and seen.first_update is not None and seen.first_step is not None and seen.over is not None
    assert seen.first_update <= seen.first_step <= seen.over and seen.decoding is not None and seen.decoding > 0


def test_what_a_visitor_asks_for_arrives(form: Form, engine: FakeEngine) -> None:
    Visitor(form).press(load.SHORT)
    asked = engine.asked[-1]
    assert (asked.method, asked.max_new_tokens, asked.baseline) == ("prompt_lookup", 32, False)


def test_a_visitor_who_leaves_is_counted_apart_and_frees_the_engine(form: Form, engine: FakeEngine) -> None:
    engine.steps, before = 900, engine.cancelled
    seen = Visitor(form).press(load.SHORT, lambda seen: seen.first_step is not None)
    engine.steps = 4
    assert seen.left and not seen.served
    assert Visitor(form).press(load.SHORT).served and engine.cancelled == before + 1


@pytest.mark.slow
def test_a_class_presses_as_often_as_it_is_told_and_half_of_it_leaves(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "VISITORS", 8)
    monkeypatch.setattr(load, "BACK_SECONDS", 0.0)
    seen = Classroom(form, 16).attend()
    assert len(seen) == 16
    refused = [one for one in seen if one.refused]
    assert refused and all("room for. Try again in a minute" in one.refused for one in refused)
    assert any(one.served for one in seen) and any(one.left for one in seen)


def rows(seen: list[PressOutcome]) -> dict[str, Any]:
    report = Report("load", {})
    load.add_visits(report, seen, 60.0)
    return {row.name: row for row in report.rows}


def test_the_report_is_about_those_who_stayed() -> None:
    whole = [PressOutcome(0.5, float(number), 20.0) for number in range(1, 20)]
    found = rows([*whole, PressOutcome(0.5, left=True), PressOutcome(over=1.0, refused="Full."), PressOutcome()])
    assert found["served, of those who stayed"].value == pytest.approx(100 * 19 / 21)
    assert "19 to the end, 1 left midway, 1 refused, 1 neither; those read: Full." in found["served, of those who stayed"].detail
    assert (found["first step, p50"].value, found["first step, p95"].value) == (10.0, 18.0)
    assert found["first update, p95"].reached and rows([])["first step, p95"].value is None


def test_an_app_that_is_gone_has_no_account_and_no_number() -> None:
    server = Server(type("Gone", (), {"pid": 2**30})(), "")
    assert server.memory is None and server.spent is None
    report = Report("load", {})
    load.resources(report, None, None, None, None)
    assert report.rows[0].value is None and report.rows[0].reached is None


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no account of processes here")
def test_memory_and_processor_time_are_read_from_the_process() -> None:
    import os

    server = Server(type("Here", (), {"pid": os.getpid()})(), "")
    assert server.memory is not None and server.memory > 10 and server.spent is not None and server.spent > 0
    report = Report("load", {})
    load.resources(report, 1000.0, 1150.0, 5, 6)
    assert report.rows[0].value == pytest.approx(15.0) and report.rows[0].reached is False


def test_the_suite_is_known_by_name_and_has_a_short_form() -> None:
    assert "load" in runner.SUITES and "load" in runner.SHORT


def test_a_stream_that_breaks_off_is_a_run_without_an_end(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(connection: object) -> None:
        raise ConnectionResetError("gone")

    monkeypatch.setattr(visitor.http.client.HTTPConnection, "getresponse", broken)
    monkeypatch.setattr(visitor, "_post", lambda host, path, body: None)
    seen = Visitor(form).press(load.SHORT)
    assert not seen.served and not seen.left and not seen.refused
