"""A server of OpenAI's kind on this machine that streams a text it was given, with the fields of one engine or another."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = ["The", " sky", " is", " blue", " since", " air", " scatters", " short", " waves", "."]


@dataclass
class Script:
    """What the server says: events of one answer, what it owns, its metrics, and how many events before it breaks off."""

    events: Sequence[dict[str, Any]]
    owner: str = "vllm"
    metrics: Sequence[str] = ("",)
    breaks_after: int | None = None
    status: int = 200
    refuses: str = ""
    """A field with which a request is refused."""
    key: str = ""
    pause: float = 0.0
    """Seconds before each event."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    looked: int = 0


def entry(word: str, number: int, ids: bool = True) -> dict[str, Any]:
    """A token's log probability as servers tell it."""
    told = {"token": word, "logprob": -0.5, "top_logprobs": [{"token": word, "logprob": -0.5}, {"token": " no", "logprob": -2.0}]}
    return {**told, **({"id": 100 + number} if ids else {})}


def piece(numbers: Sequence[int], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A streamed event with these words."""
    content = [entry(WORDS[number], number) for number in numbers]
    if finish == "stop":
        content.append(entry("<|end|>", len(WORDS)))
        numbers = [*numbers, len(WORDS)]
    choice = {
        "index": 0,
        "delta": {"content": "".join(WORDS[number] for number in numbers if number < len(WORDS))},
        "finish_reason": finish,
    }
    return {"choices": [{**choice, "logprobs": {"content": content}, "token_ids": [100 + number for number in numbers]}], **more}


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """The server's address while it runs."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Tests are quiet."""

        def _say(self, body: str, kind: str = "application/json", status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body.encode())

        def do_GET(self) -> None:
            if script.key and self.headers["Authorization"] != f"Bearer {script.key}":
                return self._say("{}", status=401)
            if self.path == "/v1/models":
                return self._say(json.dumps({"data": [{"id": "/models/tiny", "owned_by": script.owner}]}))
            if self.path != "/metrics":
                return self._say("{}", status=404)
            script.looked += 1
            self._say(script.metrics[min(script.looked, len(script.metrics)) - 1], "text/plain")
            return None

        def do_POST(self) -> None:
            script.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if script.refuses and script.refuses in script.asked[-1]:
                return self._say(json.dumps({"message": f"{script.refuses} is not supported"}), status=400)
            if script.status != 200:
                return self._say(json.dumps({"error": {"message": "no such model"}}), status=script.status)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for number, event in enumerate(script.events):
                if number == script.breaks_after:
                    return None
                threading.Event().wait(script.pause)
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
