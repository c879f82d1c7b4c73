"""The built page: what is public, what is bounded, and that it opens without a model or a recording."""

import html
import inspect
import subprocess
import sys
import threading

import gradio as gr
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from specviz.errors import BadInput, SpecvizError
from specviz.paths import BASE as ROOT
from specviz.trace import store
from specviz.ui import api, page
from specviz.ui.app_state import make
from specviz.ui.settings import Settings
from specviz.ui.tabs import about_tab, request_form
from tests.support.fakes.ui import FakeEngine, app
from tests.support.pages.served import served


@pytest.fixture(scope="module")
def engine():
    return FakeEngine(steps=20, pace=0.03)


@pytest.fixture(scope="module")
def client(tmp_path_factory, engine):
    built, url = served(app(tmp_path_factory.mktemp("app"), engine))
    yield Client(url, verbose=False)
    built.close()


def test_only_the_documented_endpoints_are_public(client):
    found = client.view_api(return_format="dict", print_info=False)
    assert set(found["named_endpoints"]) == {"/run", "/methods"} and not found["unnamed_endpoints"]


def test_run_answers_with_the_whole_trace_file(client):
    job = client.submit(method="stand", prompt="Say something.", baseline=True, parameters='{"nodes": 12}', api_name="/run")
    states = list(job)
    assert len(states) <= 3 and all('"kind":"end"' in state for state in states), "at its end and with its baseline"
    trace = store.read(states[-1].encode())
    assert len(trace.steps) == 20 and trace.end.baseline is not None


def test_the_about_tab_s_example_prints_the_whole_trace_file(client):
    example = about_tab.PROGRAMS.replace("http://127.0.0.1:7860", client.src).partition("<code>")[2].partition("</code>")[0]
    printed = subprocess.run(
        [sys.executable, "-c", html.unescape(example)], capture_output=True, text=True, timeout=120, check=True
    )
    lines = [line for line in printed.stdout.splitlines() if line.startswith("{")]  # the client prints its address first
    trace = store.read("\n".join(lines))
    assert len(trace.steps) == 20 and trace.end is not None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "telepathy"}, "There is no method 'telepathy'"),
        ({"prompt": " "}, "The prompt is empty"),
        ({"temperature": 9}, "Temperature is 9"),
        ({"parameters": "{"}, "must be a JSON object"),
    ],
)
def test_run_explains_what_is_wrong(client, changes, said):
    with pytest.raises(AppError) as caught:
        client.predict(**{"method": "stand", "prompt": "Hi", **changes}, api_name="/run")
    assert said in str(caught.value)


def test_a_cancelled_call_frees_the_engine(client, engine):
    before, engine.steps = engine.cancelled, 600
    job = client.submit(method="stand", prompt="Say something.", api_name="/run")
    for _ in range(200):
        if engine.running:
            break
        threading.Event().wait(0.05)
    job.cancel()
    engine.steps = 20
    assert client.predict(method="prompt_lookup", prompt="Next.", api_name="/run").count('"kind":"step"') == 20
    assert engine.most_running == 1 and engine.cancelled == before + 1


def test_methods_are_listed_with_their_bounds(client):
    found = {one["name"]: one for one in client.predict(api_name="/methods")}
    assert {"autoregressive", "prompt_lookup", "stand"} <= set(found)
    nodes = next(one for one in found["stand"]["parameters"] if one["name"] == "nodes")
    assert (nodes["low"], nodes["high"]) == (0, 80)


def test_the_page_opens_without_recordings(tmp_path):
    built = page.build(make(Settings(traces=tmp_path), FakeEngine()))
    labels = [block.label for block in built.blocks.values() if isinstance(block, gr.Tab)]
    assert labels == ["Text", "Vision-language", "Image", "Compare", "Methods", "Story", "Play", "Traces", "About"], (
        "lessons need recordings"
    )


def test_launch_shares_and_serves_nothing():
    options = page.launch_options(make(Settings(max_upload_mb=3), FakeEngine()))
    assert options["show_error"] is False, "an exception that nobody foresaw does not reach the page in its words"
    assert options["share"] is False and options["run_history"] is False and options["ssr_mode"] is False
    assert "allowed_paths" not in options and options["max_file_size"] == 3_000_000


@pytest.mark.slow
def test_opening_the_page_loads_no_torch_and_writes_nothing_beside_the_sources():
    stub = ROOT / "specviz" / "viewer" / "component.pyi"
    stub.unlink(missing_ok=True)
    script = "import sys, app; print({'torch', 'transformers', 'networkx'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=120, capture_output=True, text=True)
    assert run.stdout.strip() == "set()" and not stub.exists()


@pytest.mark.slow
def test_opening_the_page_reads_only_the_steps_that_it_shows():
    shared = make(Settings(), FakeEngine())
    page.build(shared)
    recordings = shared.archive.gallery.recordings
    shown = {"default": shared.archive.gallery.default, "image": shared.archive.gallery.first("image")}
    read = {name for name, one in recordings.items() if "trace" in vars(one)}
    assert {one.name for one in shown.values() if one} <= read and len(read) <= 4 < len(recordings)


def asked(shared, method="prompt_lookup", draft="", target="", **more):
    """The request that a call would make."""
    basics = {"temperature": more.pop("temperature", 0.0), "max_new_tokens": more.pop("max_new_tokens", 8)}
    common = {"seed": 0, "top_p": 1.0, "top_k": 0, "baseline": False, "raw": False}
    own, prompt = more.pop("parameters", "{}"), more.pop("prompt", "hello")
    found = api.asked(shared, (method, target, draft, prompt), basics, {**common, **more}, own)
    return request_form.request(found, shared.settings)


def test_a_draft_is_used_or_refused(tmp_path):
    shared = app(tmp_path)
    assert asked(shared, "speculative_sampling").draft is None
    for method in ("prompt_lookup", "stand", "autoregressive"):
        with pytest.raises(BadInput, match="takes no draft model; leave draft empty"):
            asked(shared, method, draft="smollm2-135m-instruct")


@pytest.mark.parametrize(
    "given",
    [
        {"method": {}}, {"method": None}, {"target": ["x"]}, {"target": "a" * 301}, {"prompt": 5}, {"seed": 10**400},
        {"top_p": float("nan")}, {"temperature": []}, {"max_new_tokens": True}, {"parameters": '{"copied": 1e999}'},
        {"parameters": '{"wings": 2}'}, {"method": "speculative_sampling", "draft": 7},
    ],
    ids=lambda given: "-".join(given),
)  # fmt: skip
def test_hostile_values_are_refused_in_a_sentence(tmp_path, given):
    with pytest.raises(SpecvizError) as refused:
        asked(app(tmp_path), **given)
    assert len(str(refused.value)) < 1500


@pytest.mark.parametrize("value", ["false", "true", "", 0, 1, None, []])
@pytest.mark.parametrize("switch", api.SWITCHES)
def test_a_switch_is_true_or_false_and_nothing_that_looks_like_it(tmp_path, switch, value):
    with pytest.raises(BadInput, match=f"{switch} is .*give true or false"):
        asked(app(tmp_path), **{switch: value})


def test_every_switch_of_the_interface_is_checked(tmp_path):
    with gr.Blocks() as page:
        api.register(app(tmp_path))
    run = next(function for function in page.fns.values() if function.api_name == "run")
    given = inspect.signature(run.fn).parameters.values()
    assert {one.name for one in given if one.annotation == "bool"} == set(api.SWITCHES)


@pytest.mark.parametrize("text", ["[]", "5", "{", "[" * 100_000, 5, "9" * 5000])
def test_parameters_that_are_no_object_are_refused(tmp_path, text):
    with pytest.raises((gr.Error, SpecvizError)):
        asked(app(tmp_path), parameters=text)
