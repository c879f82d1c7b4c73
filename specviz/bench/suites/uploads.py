"""The uploads suite: a class that opens thirty trace files at once, one file for all and then a file each.

The app runs in a process of its own, on this machine's loopback address alone; so does every request.
"""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from specviz.bench.kit.report import Report, Row
from specviz.bench.suites.load import APP, VISITORS, served_app
from specviz.trace import metrics, store
from specviz.trace.schema import End, Step, Trace

RECORDED = APP.parent / "assets" / "traces" / "eagle2.spectrace.jsonl.gz"
MEGABYTES, QUICK_MEGABYTES = 5.0, 1.0
MOST_MEMORY = 2000.0
"""Megabytes that the app may hold while a class opens its files."""
PATIENCE = 600.0
BUTTON = "sp-upload"


def lesson(megabytes: float = MEGABYTES, visitor: int = 0, steps: int | None = None) -> bytes:
    """A trace file of about this size, or of so many ``steps``: a recorded run that goes on and on. Each ``visitor``'s is
    another."""
    run = store.read(RECORDED)
    whole = [step for step in run.steps if step.cut is None]
    each = len(store.text(replace(run, steps=tuple(whole), end=None))) / len(whole)
    count = int(megabytes * 1e6 / each) if steps is None else steps
    made: list[Step] = []
    position, root = whole[0].position, whole[0].nodes[0].token
    for index in range(count):
        step = whole[index % len(whole)]
        nodes = (replace(step.nodes[0], token=root), *step.nodes[1:])
        made.append(replace(step, index=index, position=position, nodes=nodes))
        position, root = position + len(step.emitted), step.emitted[-1]
    output = tuple(token for step in made for token in step.emitted)
    end = End("budget", output, "", 1, metrics.summarise(made, "budget", 1))
    settings = replace(run.run, prompt=f"{run.run.prompt} {visitor}", max_new_tokens=len(output))
    return store.text(Trace(settings, tuple(made), end)).encode("utf-8")


@dataclass(frozen=True)
class UploadOutcome:
    """What came of one upload, and after how many seconds; ``refusal`` is the page's sentence where it was refused."""

    seconds: float
    refusal: str = ""


class Page:
    """What the page sends when a file was chosen, from the app's own configuration."""

    def __init__(self, address: str) -> None:
        self.host = urlsplit(address).netloc
        config = json.loads(self._send("GET", "/config"))
        self.prefix = config["api_prefix"]
        button = next(entry["id"] for entry in config["components"] if entry["props"].get("elem_id") == BUTTON)
        event = next(entry for entry in config["dependencies"] if [button, "upload"] in entry["targets"])
        self.event, self.places = event["id"], [entry == button for entry in event["inputs"]]

    def upload(self, content: bytes) -> UploadOutcome:
        """Open a file as the page does: store it, hand it in, read to the answer."""
        started, session, mark = time.perf_counter(), secrets.token_hex(6), secrets.token_hex(16)
        head = f'--{mark}\r\nContent-Disposition: form-data; name="files"; filename="lesson{store.SUFFIX}"\r\n\r\n'
        body = head.encode() + content + f"\r\n--{mark}--\r\n".encode()
        kind = f"multipart/form-data; boundary={mark}"
        (path,) = json.loads(self._send("POST", f"{self.prefix}/upload", body, kind))
        file = {"path": path, "orig_name": f"lesson{store.SUFFIX}", "meta": {"_type": "gradio.FileData"}}
        data = [file if mine else None for mine in self.places]
        request = json.dumps({"data": data, "fn_index": self.event, "session_hash": session}).encode()
        self._send("POST", f"{self.prefix}/queue/join", request, "application/json")
        answer = self._send("GET", f"{self.prefix}/queue/data?session_hash={session}").decode("utf-8")
        return UploadOutcome(time.perf_counter() - started, refusal(answer))

    def _send(self, method: str, path: str, body: bytes | None = None, kind: str = "") -> bytes:
        with closing(http.client.HTTPConnection(self.host, timeout=PATIENCE)) as connection:
            connection.request(method, path, body, {"Content-Type": kind} if kind else {})
            return connection.getresponse().read()


def refusal(answer: str) -> str:
    """Why the file was not opened, out of the events that answered; nothing where it was."""
    for line in answer.splitlines():
        event = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {}
        if event.get("msg") == "process_completed":
            if not event["success"]:
                return str(event["output"].get("error") or "an error without words")
            return "" if "opened: " in line else line[:400]
    return "no answer"


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """Measure. No model runs, so ``methods`` has no say."""
    size = QUICK_MEGABYTES if quick else MEGABYTES
    same = lesson(size)
    crowds: dict[str, list[bytes]] = {"one file for all": [same] * VISITORS}
    crowds["a file each"] = [lesson(size, visitor) for visitor in range(1, VISITORS + 1)]
    for name, files in crowds.items():
        with served_app(target) as server:
            page = Page(server.address)
            page.upload(lesson(0.1, VISITORS + 1))  # compiles the schema
            before = server.memory
            with ThreadPoolExecutor(VISITORS) as pool:
                outcomes = list(pool.map(page.upload, files))
            after, most = server.memory, server.status("VmHWM")
        add_uploads(report, name, outcomes, len(same) / 1e6)
        detail = "" if before is None or after is None else f"{before:.0f} MB resident before, {after:.0f} MB after"
        peak = None if most is None else most / 1024
        report.add(Row(f"{name}: memory at most", peak, "MB", MOST_MEMORY, at_most=True, detail=detail))


def add_uploads(report: Report, name: str, outcomes: Sequence[UploadOutcome], size: float) -> None:
    """How many were served, and when."""
    refused: list[str] = [outcome.refusal for outcome in outcomes if outcome.refusal]
    reason = f"; those read: {refused[0]}" if refused else ""
    detail = f"{VISITORS} of {size:.1f} MB: {len(outcomes) - len(refused)} served, {len(refused)} refused{reason}"
    report.add(Row(f"{name}: served", 100 * (1 - len(refused) / len(outcomes)), "%", 100.0, detail=detail))
    times: list[Any] = sorted(outcome.seconds for outcome in outcomes if not outcome.refusal)
    for share in (0.5, 0.95):
        value = times[round(share * (len(times) - 1))] if times else None
        report.add(Row(f"{name}: opened after, p{100 * share:.0f}", value, "s"))
