"""Simulated visitor for load measurements: presses Run live as a page does, times what comes, may leave midway."""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from specviz.bench.kit.headless_client import BUTTON, TAIL

RUN_LINE, STEP_LINE, END_LINE, KEY, REFUSAL = ('"kind":"run"', '"kind":"step"', '"kind":"end"', '"run":"', "sp-say-error")
PATIENCE = 900.0
"""Seconds after which a visitor who hears nothing gives up."""


@dataclass
class PressOutcome:
    """What one press of the button brought. Times are seconds since then, None for what never came."""

    first_update: float | None = None
    first_step: float | None = None
    over: float | None = None
    decoding: float | None = None
    """Seconds of decoding by the run's own end line."""
    tokens: int = 0
    refused: str = ""
    left: bool = False

    @property
    def served(self) -> bool:
        """Whether the run was seen to its end."""
        return self.over is not None and not self.left and not self.refused


class Form:
    """What the page asks for when its button is pressed, from the app's own configuration."""

    def __init__(self, address: str) -> None:
        self.host = urlsplit(address).netloc
        config = json.loads(_body(self.host, "/config"))
        self.prefix = config.get("api_prefix", "")
        components = {entry["id"]: entry["props"] for entry in config["components"]}
        pressed = next(id for id, props in components.items() if props.get("elem_id") == BUTTON)
        event = next(entry for entry in config["dependencies"] if [pressed, "click"] in entry["targets"])
        self.event = event["id"]
        self._inputs = [(components[id].get("elem_id"), components[id].get("value")) for id in event["inputs"]]

    def data(self, controls: dict[str, Any]) -> list[Any]:
        """The values of all controls, ``controls`` over the page's own defaults."""
        return [controls.get(name, value) for name, value in self._inputs]


class Visitor:
    """One page. It is left for good when it leaves midway."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.session = secrets.token_hex(6)

    def press(self, controls: dict[str, Any], leave: Callable[[PressOutcome], bool] = lambda outcome: False) -> PressOutcome:
        """Press the button and read to the end, or until ``leave``, asked after every piece of news, says so."""
        outcome, started = PressOutcome(), time.perf_counter()
        heartbeat = _open(self.form.host, f"{self.form.prefix}/heartbeat/{self.session}")
        try:
            body = {"data": self.form.data(controls), "fn_index": self.form.event, "session_hash": self.session}
            _post(self.form.host, f"{self.form.prefix}/queue/join", body)
            for line in self._lines():
                now = time.perf_counter() - started
                _update_outcome(outcome, line, now)
                if leave(outcome):
                    outcome.left = True
                    break
                if '"close_stream"' in line:
                    outcome.over = now
                    break
        finally:
            heartbeat.close()
        return outcome

    def _lines(self) -> Iterator[str]:
        """Lines of the events, and once the run goes on, those of its tail instead until that is over."""
        events = _open(self.form.host, f"{self.form.prefix}/queue/data?session_hash={self.session}")
        try:
            key, followed = "", False
            for line in _read(events):
                yield line
                plain = line.replace('\\"', '"')
                if not key and KEY in plain:
                    key = plain.split(KEY, 1)[1].split('"', 1)[0]
                if key and not followed and RUN_LINE in plain:
                    followed = True
                    tail = _open(self.form.host, f"/{TAIL}/{key}?from=0")
                    try:
                        yield from _read(tail)
                    finally:
                        tail.close()
        finally:
            events.close()


def _update_outcome(outcome: PressOutcome, line: str, now: float) -> None:
    plain = line.replace('\\"', '"')
    if outcome.first_update is None and '"process_generating"' in line:
        outcome.first_update = now
    if outcome.first_step is None and STEP_LINE in plain:
        outcome.first_step = now
    if line.startswith("data: {") and END_LINE in line and '"msg"' not in line:
        metrics = json.loads(line.removeprefix("data: "))["metrics"]
        outcome.decoding, outcome.tokens = metrics["seconds"]["total"], metrics["emitted"]
    if REFUSAL in plain and not outcome.refused and outcome.first_step is None:
        outcome.refused = plain.split(REFUSAL, 1)[1].split(">", 1)[-1].split("<", 1)[0]


def _open(host: str, path: str) -> http.client.HTTPConnection:
    """A connection whose answer may be read."""
    connection = http.client.HTTPConnection(host, timeout=PATIENCE)
    connection.request("GET", path)
    return connection


def _read(connection: http.client.HTTPConnection) -> Iterator[str]:
    """The lines of a stream, until it is closed or breaks off."""
    try:
        answer = connection.getresponse()
        while line := answer.readline():
            yield line.decode("utf-8")
    except (OSError, http.client.HTTPException):
        return  # a visitor whose stream breaks off has seen no end, and is counted so


def _post(host: str, path: str, body: dict[str, Any]) -> None:
    connection = http.client.HTTPConnection(host, timeout=PATIENCE)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    connection.getresponse().read()
    connection.close()


def _body(host: str, path: str) -> bytes:
    connection = _open(host, path)
    body = connection.getresponse().read()
    connection.close()
    return body
