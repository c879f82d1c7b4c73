"""Simulated visitor of the running app: presses *Run live*, times the updates and may leave midway.

Uses HTTP, since Gradio's client cannot call the page's private events. ``python -m specviz.bench.visitor ADDRESS`` reads
control values from stdin, one JSON object per line. For each, the program presses the button and prints the number of updates
and the seconds.
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
"""HTTP timeout in seconds."""


@dataclass
class Outcome:
    """Result of one press. Times are in seconds since the press; None: the event never came.

    ``over``: end of the stream. ``decoding`` and ``tokens``: seconds and tokens, from the end record. ``refused``: the app's
    message to a refused visitor. ``left``: whether the visitor left midway.
    """

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
        """Whether the visitor saw the run to the end."""
        return None not in (self.over, self.decoding) and not self.left and not self.refused

    def take(self, line: str, now: float) -> None:
        """Process one line of the page's events or of the run's stream."""
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
    """Client for the *Run live* event, with the inputs and defaults of the app's configuration."""

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
        """Return the values of all inputs: from ``controls`` by element id, else the page's defaults."""
        return [controls.get(name, value) for name, value in self._inputs]

    @contextmanager
    def get(self, path: str) -> Iterator[HTTPResponse]:
        """Send a GET request and yield the response."""
        connection = HTTPConnection(self.host, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            yield connection.getresponse()
        finally:
            connection.close()

    def join(self, session: str, data: list[Any]) -> None:
        """Press *Run live*: join Gradio's queue."""
        connection, asked = HTTPConnection(self.host, timeout=PATIENCE), {"fn_index": self.event, "session_hash": session}
        try:
            connection.request(
                "POST", f"{self.prefix}/queue/join", json.dumps(asked | {"data": data}), {"Content-Type": "application/json"}
            )
            connection.getresponse().read()
        finally:
            connection.close()

    def events(self, session: str) -> Iterator[str]:
        """Yield the lines of the page's events."""
        yield from self.lines(f"{self.prefix}/queue/data?session_hash={session}")

    def lines(self, path: str) -> Iterator[str]:
        """Yield the lines of the response for ``path`` until the connection ends, normally or not."""
        try:
            with self.get(path) as answer:
                while line := answer.readline():
                    yield line.decode("utf-8")
        except (OSError, HTTPException):
            return  # the run then counts as lost


class Visitor:
    """One page session. A session that was left midway cannot press again."""

    def __init__(self, form: Form) -> None:
        self.form, self.session = form, secrets.token_hex(6)

    def press(self, controls: dict[str, Any], leave: Callable[[Outcome], bool] = lambda outcome: False) -> Outcome:
        """Press *Run live* and read to the end. ``leave`` is called after every line; if True, the visitor leaves."""
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
        """Yield the lines of the page's events and, once they name the run's stream, the lines of the stream."""
        key = ""
        for line in self.form.events(self.session):
            yield line
            plain = line.replace('\\"', '"')
            if not key and FOLLOW in plain:
                key = plain.split(KEY, 1)[1].split('"', 1)[0]
                yield from self.form.lines(f"/{TAIL}/{key}")


def main(address: str) -> None:
    """Press once for every line of stdin and print the measurements as JSON."""
    form = Form(address)
    print("ready", flush=True)
    for line in sys.stdin:
        started = time.process_time()
        updates = Visitor(form).press(json.loads(line)).updates
        measured = {"updates": len(updates), "seconds": max(updates) - min(updates), "cpu": time.process_time() - started}
        print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
