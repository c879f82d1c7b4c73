"""Headless client: presses Run live as the page does, reads what the page would get, counts it, keeps nothing.

Run as a process of its own, so that what it costs is not part of what it measures: ``python -m specviz.bench.kit.headless_client
ADDRESS``. Each line on its input is a JSON object of values for the page's controls by ``elem_id``; each line of its output
says how many updates came, over how many seconds, and how much processor time reading them took.
"""

from __future__ import annotations

import http.client
import json
import re
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

BUTTON = "sp-run-live"
RUN_KEY = re.compile(rb'\\"run\\":\\"([\w-]+)\\"')
TAIL = "specviz/tail"


class Watcher:
    """One visitor of the app at ``address``."""

    def __init__(self, address: str) -> None:
        self.host = urlsplit(address).netloc
        config = json.loads(b"".join(self._get("/config")))
        self.components = {entry["id"]: entry for entry in config["components"]}
        self.prefix = config.get("api_prefix", "")
        self.session = secrets.token_hex(6)
        pressed = next(entry["id"] for entry in config["components"] if entry["props"].get("elem_id") == BUTTON)
        self.event = next(entry for entry in config["dependencies"] if [pressed, "click"] in entry["targets"])

    def press(self, controls: dict[str, Any]) -> dict[str, float]:
        """Run what ``controls`` say over the page's own defaults, and read to the end."""
        ids_by_name = {component["props"].get("elem_id"): component["id"] for component in self.components.values()}
        values_by_id = {ids_by_name[name]: value for name, value in controls.items()}
        data = [values_by_id.get(id, self.components[id]["props"].get("value")) for id in self.event["inputs"]]
        started = time.process_time()
        self._post("/queue/join", {"data": data, "fn_index": self.event["id"], "session_hash": self.session})
        times: list[float] = []
        following: threading.Thread | None = None
        for piece in self._get(f"{self.prefix}/queue/data?session_hash={self.session}"):
            times += [time.perf_counter()] * piece.count(b'"process_generating"')
            key = RUN_KEY.search(piece)
            if key and following is None:
                path = f"/{TAIL}/{key[1].decode()}?from=0"
                following = threading.Thread(target=self._follow, args=(path, times), daemon=True)
                following.start()
            if b'"close_stream"' in piece:
                break
        if following is not None:
            following.join()
        return {"updates": len(times), "seconds": max(times) - min(times), "cpu": time.process_time() - started}

    def _follow(self, path: str, times: list[float]) -> None:
        for piece in self._get(path):
            times += [time.perf_counter()] * piece.count(b"\n\n")

    def _post(self, path: str, body: dict[str, Any]) -> None:
        connection = http.client.HTTPConnection(self.host)
        connection.request("POST", self.prefix + path, json.dumps(body), {"Content-Type": "application/json"})
        connection.getresponse().read()
        connection.close()

    def _get(self, path: str) -> Iterator[bytes]:
        """The answer, piece by piece as it arrives."""
        connection = http.client.HTTPConnection(self.host)
        connection.request("GET", path)
        answer = connection.getresponse()
        while piece := answer.read1(1 << 20):
            yield piece
        connection.close()


def main(address: str) -> None:
    """Serve the measuring process until it closes the input."""
    watcher = Watcher(address)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(watcher.press(json.loads(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
