"""The app starts wherever it can; where it cannot, one sentence says what to change."""

import gc
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from specviz.errors import SpecvizError
from specviz.paths import IMPORTED_FROM
from specviz.ui import before_gradio, settings


@pytest.fixture(autouse=True)
def uploads(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "models"))


def started(**environment):
    return settings.check(settings.read(environment))


def test_an_app_without_any_variable_starts():
    assert started() == settings.Settings()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PORT", "70000", "PORT is '70000'"),
        ("GRADIO_SERVER_NAME", "no.such.host.invalid", "GRADIO_SERVER_NAME is 'no.such.host.invalid'"),
        ("GRADIO_SERVER_NAME", "203.0.113.1", "cannot listen on any port of 203.0.113.1"),
        ("SPECVIZ_TARGET", "nonsense", "SPECVIZ_TARGET names 'nonsense', which is not a model"),
        ("SPECVIZ_MODELS", "qwen3-8b,qwen4", "SPECVIZ_MODELS names 'qwen4', which is not a model"),
        ("SPECVIZ_TRACES", "/nowhere", "SPECVIZ_TRACES names '/nowhere'"),
        ("SPECVIZ_LESSONS", "/dev/null", "SPECVIZ_LESSONS names '/dev/null'"),
    ],
)
def test_what_cannot_be_used_is_named(variable, value, said):
    with pytest.raises(SpecvizError, match=said):
        started(**{variable: value})


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SpecvizError, match=f"cannot listen on port {port} of 127.0.0.1 .* Set PORT to a free port"):
            started(PORT=str(port))


@pytest.mark.parametrize("folder", ["/proc/nothing", "/dev/null", "/dev/null/below"])
def test_a_folder_of_uploads_that_cannot_be_written_is_named(folder, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", folder)
    with pytest.raises(SpecvizError, match=f"The upload folder {folder} .* GRADIO_TEMP_DIR"):
        started()


@pytest.mark.parametrize("folder", ["/proc/nothing", "/dev/null", "/dev/null/below", ""])
def test_a_cache_that_cannot_be_written_is_named_once_and_starts(folder, monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("SPECVIZ_CACHE", folder or str(tmp_path))
    started()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == bool(folder)
    assert all(f"The cache folder {folder} cannot be written" in text and "SPECVIZ_CACHE" in text for text in said)


def test_a_sentence_and_the_command_lines_exit_code_are_all_that_a_user_sees(capsys):
    with pytest.raises(SystemExit) as ended, settings.explained():
        started(PORT="abc")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "The environment variable PORT is 'abc'; give a whole number from 1 to 65,535.\n"


def test_the_environments_proxies_are_left_out_and_come_back(monkeypatch):
    monkeypatch.setenv("no_proxy", "intranet.example")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with before_gradio.without_proxies():
        assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == "*"
    assert os.environ["no_proxy"] == "intranet.example" and "NO_PROXY" not in os.environ


STARTS_AND_ENDS = """
import runpy
from specviz.ui.before_gradio import without_proxies
with without_proxies():
    import gradio
gradio.Blocks.block_thread = lambda page: page.close()
runpy.run_path("app.py", run_name="__main__")
"""


@pytest.mark.slow
def test_the_whole_app_starts_whatever_proxies_are_named_and_without_a_cache():
    nowhere = "http://127.0.0.1:9"
    proxies = {
        "HTTP_PROXY": nowhere,
        "http_proxy": nowhere,
        "HTTPS_PROXY": "socks5://127.0.0.1:9",
        "all_proxy": "socks://127.0.0.1:9",
    }
    environment = {**proxies, "SPECVIZ_CACHE": "/proc/nothing"}
    clean = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and name != "PORT"}
    asked = [sys.executable, "-c", STARTS_AND_ENDS]
    done = subprocess.run(asked, cwd=IMPORTED_FROM, env=clean | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Running on local URL" in done.stdout


@pytest.mark.slow
def test_an_argument_is_refused_and_the_variable_named():
    asked = [sys.executable, "app.py", "--port", "80"]
    done = subprocess.run(asked, cwd=IMPORTED_FROM, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "") and "`GRADIO_SERVER_PORT=8080 python app.py`" in done.stderr


def test_threads_that_read_files_leave_the_event_loop_its_share(monkeypatch):
    seen = []
    page = SimpleNamespace(
        launch=lambda **options: seen.append((sys.getswitchinterval(), gc.get_threshold()[2])), block_thread=lambda: None
    )
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    try:
        settings.launch(page, {})
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)
    assert seen == [(pytest.approx(settings.SWITCH_SECONDS), 1000)]


STUB = """
import sys

def GPU(task=None, *, duration=None, size=None):
    assert "torch" not in sys.modules
    print("duration", duration)
    return task if callable(task) else lambda task: task
"""
START = """
import sys, urllib.request, app
found, url, _ = app.demo.launch(**app.options, prevent_thread_lock=True, quiet=True)
print("answers", urllib.request.urlopen(url).status, "spaces" in sys.modules, "torch" in sys.modules)
print("says", app.running.hardware.sentence())
app.demo.close()
"""


def on_a_space(stub, **environment):
    """What a start prints. A minute is what a Space should need at most."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("SPACE", "SPECVIZ_", "GRADIO_", "PORT"))
    }
    path = os.pathsep.join([str(stub), str(IMPORTED_FROM)])
    ran = subprocess.run(
        [sys.executable, "-c", START], cwd=IMPORTED_FROM, capture_output=True, text=True, timeout=180,
        env={**inherited, "PYTHONPATH": path, **environment}, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_a_zero_gpu_space_starts_with_the_entry_that_borrows_and_says_for_how_long(tmp_path):
    (tmp_path / "spaces.py").write_text(STUB)
    said = on_a_space(tmp_path, SPACES_ZERO_GPU="true", SPACE_ID="me/app").splitlines()
    assert "duration 60" in said and "answers 200 True False" in said
    assert "says Each run borrows a GPU for at most 60 s." in said


@pytest.mark.slow
def test_a_space_with_hardware_of_its_own_asks_for_no_such_package(tmp_path):
    (tmp_path / "spaces.py").write_text("raise ImportError('not asked for')")
    said = on_a_space(tmp_path, SPACE_ID="me/app", SPECVIZ_DEVICE="cpu").splitlines()
    assert "answers 200 False False" in said and any(line.startswith("says Runs on ") for line in said)
