"""A model from the hub, through the hub's own client, against a small server that speaks its language."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from specviz.models.text.load import load_causal_lm

COMMIT = "a" * 40
ROOT = Path(__file__).resolve().parents[3]
ASK = """
import sys
from specviz.errors import SpecvizError
from specviz.models.hub.hub import fetch_repository
told = []
try:
    folder = fetch_repository(sys.argv[1], lambda message, fraction: told.append(fraction or 0))
    print("fetched", max(told), folder)
except SpecvizError as problem:
    print("refused", problem)
"""


class Hub(BaseHTTPRequestHandler):
    """Serves one folder as ``tiny/model``; ``tiny/gated`` wants its licence accepted; nothing else is there."""

    folder: Path
    asked: list[str]

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def log_message(self, *_):
        """Say nothing."""

    def _answer(self, body):
        path = self.path.split("?")[0]
        self.asked.append(path)
        if "tiny/gated" in path:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"}, body)
        elif path.startswith("/api/models/tiny/model/tree/"):
            self._send(200, json.dumps([self._described(file) for file in self._files()]).encode(), {}, body)
        elif path.startswith("/api/models/tiny/model"):
            siblings = [{"rfilename": file.name} for file in self._files()]
            about = {"id": "tiny/model", "sha": COMMIT, "siblings": siblings}
            self._send(200, json.dumps(about).encode(), {}, body)
        elif path.startswith(f"/tiny/model/resolve/{COMMIT}/"):
            content = (self.folder / path.rsplit("/", 1)[1]).read_bytes()
            etag = hashlib.sha1(content).hexdigest()
            self._send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, body)
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)

    def _files(self):
        return sorted(self.folder.iterdir())

    def _described(self, file):
        oid = hashlib.sha1(file.read_bytes()).hexdigest()
        return {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": oid}

    def _send(self, status, content, headers, body):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def hub(tiny_folder):
    """Its address, and the list of what it was asked for."""
    (tiny_folder / "pytorch_model.bin").write_bytes(b"a pickle nobody may download")
    (tiny_folder / "modeling_own.py").write_bytes(b"raise SystemExit('never run')")
    handler = type("TinyHub", (Hub,), {"folder": tiny_folder, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", handler.asked
    server.shutdown()
    server.server_close()
    thread.join()


def _ask(name, address, tmp_path, place="HF_HOME"):
    """What a fresh process says: the hub's client reads its settings once, when it is imported. ``place`` names the folder."""
    settings = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    settings[place] = str(tmp_path / "hub")
    places = ("HF_HOME", "HF_HUB_CACHE", "SPECVIZ_CACHE")
    without_proxy = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and name not in places
    }
    command = [sys.executable, "-c", ASK, name]
    answer = subprocess.run(command, cwd=ROOT, env=without_proxy | settings, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def test_a_hub_model_is_fetched_without_pickles_or_code_and_works_offline_afterwards(hub, tmp_path):
    address, asked = hub
    said, most, folder = _ask("tiny/model", address, tmp_path).split(" ", 2)
    assert (said, most) == ("fetched", "1.0")
    fetched = {path.rsplit("/", 1)[1] for path in asked if "/resolve/" in path}
    assert "model.safetensors" in fetched and not {name for name in fetched if name.endswith((".bin", ".py"))}
    assert _ask("tiny/model", "http://127.0.0.1:9", tmp_path).split(" ", 2)[2] == folder
    assert load_causal_lm(folder, "float32").model.config.num_hidden_layers == 2


def test_one_setting_moves_the_hubs_files_too(hub, tmp_path):
    said, _, folder = _ask("tiny/model", hub[0], tmp_path, "SPECVIZ_CACHE").split(" ", 2)
    assert said == "fetched" and Path(folder).is_relative_to(tmp_path / "hub" / "hub" / "models--tiny--model")


@pytest.mark.spread(1)
@pytest.mark.parametrize(("name", "said"), [("tiny/gated", "accepting its licence"), ("tiny/missing", "hub has no tiny/missing")])
def test_a_hub_model_that_cannot_be_had_says_why(name, said, hub, tmp_path):
    answer = _ask(name, hub[0], tmp_path)
    assert answer.startswith("refused") and said in answer and "Traceback" not in answer


def test_without_a_network_the_way_out_is_said(tmp_path):
    answer = _ask("tiny/model", "http://127.0.0.1:9", tmp_path)
    assert answer.startswith("refused") and "Check the network" in answer
