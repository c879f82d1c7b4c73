"""Simulated visitor of the running app: presses *Run live*, times the updates and may leave midway.

The page's events are private, so Gradio's own client refuses them. As a program, ``python -m specviz.bench.visitor ADDRESS``, it
reads values for the page's controls, one JSON object per line, and prints the number of updates and the cost of reading them.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

TAIL = "specviz/tail"
STEP_LINE, END_LINE, KEY, FOLLOW, REFUSAL = ('"kind":"step"', '"kind":"end"', '"run":"', '"follow":true', "sp-say-error")
PATIENCE = 900.0
"""Seconds without an answer before a timeout."""


@dataclass
class Outcome:
    """Result of one press: times in seconds since the press, None for missing events. ``decoding`` is from the run's end line."""

    first_update: float | None = None
    first_step: float | None = None
    over: float | None = None
    decoding: float | None = None
    tokens: int = 0
    updates: list[float] = field(default_factory=list)
    refused: str = ""
    left: bool = False

    @property
    def served(self) -> bool:
        """Whether the run was followed to its end."""
        return self.over is not None and not self.left and not self.refused

    def take(self, line: str, now: float) -> None:
        """Process one line of the events or of the run's stream."""
        plain = line.replace('\\"', '"')
        if '"process_generating"' in line:
            self.updates.append(now)
            self.first_update = now if self.first_update is None else self.first_update
        if line.startswith("data: {") and '"msg"' not in line:
            if STEP_LINE in line and self.first_step is None:
                self.first_step = now
            self.updates.append(now)
            if END_LINE in line:
                metrics = json.loads(line.removeprefix("data: "))["metrics"]
                self.decoding, self.tokens = metrics["seconds"]["total"], metrics["emitted"]
        if REFUSAL in plain and not self.refused and self.first_step is None:
            self.refused = plain.split(REFUSAL, 1)[1].split(">", 1)[-1].split("<", 1)[0]
        if '"close_stream"' in line:
            self.over = now


class Form:
    """Inputs of the *Run live* event, read from the app's own configuration."""

    def __init__(self, address: str) -> None:
        self.host = urlsplit(address).netloc
        with self.get("/config") as answer:
            config = json.load(answer)
        self.prefix = config.get("api_prefix", "")
        components = {entry["id"]: entry["props"] for entry in config["components"]}
        pressed = next(id for id, props in components.items() if props.get("elem_id") == "sp-run-live")
        found = next(entry for entry in config["dependencies"] if [pressed, "click"] in entry["targets"])
        self.event = found["id"]
        self._inputs = [(components[id].get("elem_id"), components[id].get("value")) for id in found["inputs"]]

    def data(self, controls: dict[str, Any]) -> list[Any]:
        """Return the values of all controls: those in ``controls``, by element id, else the page's defaults."""
        return [controls.get(name, value) for name, value in self._inputs]

    @contextmanager
    def get(self, path: str) -> Iterator[HTTPResponse]:
        """Yield an HTTP response, to be read line by line."""
        connection = HTTPConnection(self.host, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            yield connection.getresponse()
        finally:
            connection.close()

    def join(self, session: str, data: list[Any]) -> None:
        """Press the button."""
        connection, asked = HTTPConnection(self.host, timeout=PATIENCE), {"fn_index": self.event, "session_hash": session}
        try:
            connection.request(
                "POST", f"{self.prefix}/queue/join", json.dumps(asked | {"data": data}), {"Content-Type": "application/json"}
            )
            connection.getresponse().read()
        finally:
            connection.close()

    def events(self, session: str) -> Iterator[str]:
        """Yield lines of a page's events."""
        yield from self.lines(f"{self.prefix}/queue/data?session_hash={session}")

    def lines(self, path: str) -> Iterator[str]:
        """Yield the lines of an answer until it is closed or breaks off."""
        try:
            with self.get(path) as answer:
                while line := answer.readline():
                    yield line.decode("utf-8")
        except (OSError, HTTPException):
            return  # a visitor whose stream breaks off counts as not served


class Visitor:
    """One page session. A visitor who leaves midway cannot be reused."""

    def __init__(self, form: Form) -> None:
        self.form, self.session = form, secrets.token_hex(6)

    def press(self, controls: dict[str, Any], leave: Callable[[Outcome], bool] = lambda outcome: False) -> Outcome:
        """Press the button and read to the end, or until ``leave``, called after every line, returns True."""
        outcome, started = Outcome(), time.perf_counter()
        heartbeat = HTTPConnection(self.form.host, timeout=PATIENCE)
        heartbeat.request("GET", f"{self.form.prefix}/heartbeat/{self.session}")
        try:
            self.form.join(self.session, self.form.data(controls))
            for line in self._lines():
                outcome.take(line, time.perf_counter() - started)
                outcome.left = leave(outcome)
                if outcome.left or outcome.over is not None:
                    break
        finally:
            heartbeat.close()
        return outcome

    def _lines(self) -> Iterator[str]:
        """Yield the lines of the events; once the run streams, yield its lines until the stream ends."""
        key = ""
        for line in self.form.events(self.session):
            yield line
            plain = line.replace('\\"', '"')
            if not key and FOLLOW in plain:
                key = plain.split(KEY, 1)[1].split('"', 1)[0]
                yield from self.form.lines(f"/{TAIL}/{key}")


def main(address: str) -> None:
    """Answer a measuring process until it closes the input."""
    form = Form(address)
    print("ready", flush=True)
    for line in sys.stdin:
        started = time.process_time()
        updates = Visitor(form).press(json.loads(line)).updates
        measured = {"updates": len(updates), "seconds": max(updates) - min(updates), "cpu": time.process_time() - started}
        print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
