"""What stands in the controls becomes a request, or one sentence that says which control to change."""

import json
from dataclasses import replace

import gradio as gr
import pytest

from specviz.errors import BadInput, OutOfMemory
from specviz.methods.registry import all_methods, build, describe
from specviz.models import room
from specviz.ui.settings import Settings
from specviz.ui.tabs import request_form
from specviz.ui.tabs.run_tab import ImageTab, TextTab, VisionTab
from tests.support.fakes.ui import app, asked, changed
from tests.support.traces.samples import sample_trace


@pytest.fixture
def shared(tmp_path):
    return app(tmp_path)


def test_the_defaults_of_every_method_are_a_good_request(shared):
    for method in all_methods():
        request = request_form.request(asked(shared, method), shared.settings)
        assert (request.method, request.baseline, request.draft) == (method, True, None)


def test_every_control_reaches_the_request(shared):
    given = asked(
        shared,
        "stand",
        "Hello",
        basics=changed(request_form.forms(shared.settings)[0], temperature="0.7", max_new_tokens="33"),
        advanced=changed(
            request_form.forms(shared.settings)[1], top_p="0.9", top_k="40", seed="7", prompt_as="raw", dtype="float32",
            device="cpu", tier="eager", baseline=False,
        ),
        own=changed(request_form.method_answer("stand"), nodes="12"),
    )  # fmt: skip
    request = request_form.request(given, shared.settings)
    assert (request.temperature, request.max_new_tokens, request.top_p, request.top_k) == (0.7, 33, 0.9, 40)
    assert (request.seed, request.raw, request.dtype, request.device, request.tier) == (
        7,
        True,
        "float32",
        "cpu",
        "eager",
    )
    assert not request.baseline and request.parameters.nodes == 12


@pytest.mark.parametrize(
    ("form", "name", "value", "said"),
    [
        ("basics", "temperature", "hot", "Temperature is 'hot'; give a number from 0.0 to 2.0"),
        ("basics", "temperature", "NaN", "Temperature is 'NaN'"),
        ("basics", "temperature", "", "Temperature is ''"),
        ("basics", "temperature", None, "Temperature is None"),
        ("basics", "temperature", -0.1, "from 0.0 to 2.0"),
        ("basics", "max_new_tokens", 0, "New tokens is 0; give a whole number from 1"),
        ("basics", "max_new_tokens", 10.5, "New tokens is 10.5; give a whole number"),
        ("basics", "max_new_tokens", 500, "New tokens is 500; the maximum here is 200"),
        ("advanced", "seed", "lucky", "Seed is 'lucky'"),
        ("advanced", "top_p", "inf", "Top-p is 'inf'"),
        ("advanced", "dtype", "int3", "Number format is 'int3'; choose one of auto"),
        ("advanced", "nonsense", 1, "nonsense"),
        ("own", "nodes", 900, "STAND's parameter nodes is 900; give a whole number from 0 to 80"),
    ],
)
def test_a_bad_value_is_named_with_its_bounds(tmp_path, form, name, value, said):
    shared = app(tmp_path, max_new_tokens=200)
    given = asked(shared)
    with pytest.raises(BadInput) as caught:
        request_form.request(asked(shared, **{form: changed(getattr(given, form), **{name: value})}), shared.settings)
    assert said in str(caught.value)


def test_strangers_start_no_compilers(tmp_path):
    shared = app(tmp_path)
    given = asked(shared)
    compiled = asked(shared, advanced=changed(given.advanced, tier="compiled"))
    assert request_form.request(compiled, shared.settings).tier == "compiled"
    with pytest.raises(BadInput, match="compiled tier is only for apps that other machines cannot reach"):
        request_form.request(compiled, replace(shared.settings, private=False))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompt": " \n "}, "The prompt is empty"),
        ({"prompt": None}, "The prompt is empty"),
        ({"prompt": "x" * 100_000}, "100,000 characters"),
        ({"method": "telepathy"}, "There is no method 'telepathy'"),
        ({"method": None}, "There is no method"),
        ({"target": ""}, "Choose a target"),
        ({"basics": "not json"}, "Reload the page"),
        ({"basics": None}, "Reload the page"),
        ({"advanced": "[" * 19_000}, "Reload the page"),
        ({"own": "x" * 30_000}, "Reload the page"),
        ({"own": "[1]"}, "Reload the page"),
    ],
)
def test_bad_input_is_one_clear_sentence(shared, changes, said):
    with pytest.raises(BadInput, match=said):
        request_form.request(asked(shared, **changes), shared.settings)


def test_a_public_copy_keeps_visitors_to_its_list():
    public = Settings(any_model=False)
    assert request_form.model("smollm2-135m-instruct", public) == "smollm2-135m-instruct"
    for name in ("/etc", "somebody/else", "../.."):
        with pytest.raises(BadInput, match="only the models on its list"):
            request_form.model(name, public)
    assert request_form.model("somebody/else", Settings()) == "somebody/else"


SERVER = "http://127.0.0.1:8000"


@pytest.mark.parametrize("pasted", [SERVER, f"{SERVER}/", f"  {SERVER}/v1 ", f"server:{SERVER}/v1/", "HTTP://127.0.0.1:8000"])
@pytest.mark.parametrize("any_model", [True, False])
def test_an_allowed_server_s_address_may_be_pasted_as_one_has_it(pasted, any_model):
    settings = Settings(servers=(SERVER,), any_model=any_model)
    assert request_form.model(pasted, settings) == f"server:{SERVER}"
    with pytest.raises(BadInput, match="Text tab"):  # the picture would not be sent
        request_form.model(pasted, settings, "vision_language")


@pytest.mark.parametrize(("servers", "said"), [((SERVER,), ", address of an allowed server"), ((), "")])
def test_where_one_types_a_model_it_says_what_may_be_typed(tmp_path, servers, said):
    shared = app(tmp_path, servers=servers)
    with gr.Blocks(), gr.Tab() as opened:
        assert TextTab(shared).target.info == f"Or type a hub id, folder{said} or .gguf file."
        assert ImageTab(shared, opened).target.info == "Or type a hub id, folder or .gguf file.", "a server answers text alone"


@pytest.mark.parametrize(
    "pasted",
    ["http://127.0.0.1:8001", "http://127.0.0.1", "https://127.0.0.1:8000", "http://169.254.169.254/latest", "file:///etc/passwd",
     "http://127.0.0.1:8000@evil.example", "http://127.0.0.1:8000/other", "server:127.0.0.1:8000", "http://localhost:8000"],
)  # fmt: skip
def test_no_other_address_is_reached(pasted):
    for any_model in (True, False):
        with pytest.raises(BadInput, match="SPECVIZ_SERVERS|not a server address"):
            request_form.model(pasted, Settings(servers=(SERVER,), any_model=any_model))


def test_published_heads_are_listed_for_their_target_and_method_alone():
    def named(method, target, **settings):
        return [name for _, name in request_form.heads(method, target, Settings(**settings))]

    assert named("eagle3", "qwen3-1.7b") == named("eagle3", "Qwen/Qwen3-1.7B") == ["AngelSlim/Qwen3-1.7B_eagle3"]
    assert "z-lab/Qwen3-4B-DFlash-b16" in named("dflash", "qwen3-4b") and "AngelSlim/Qwen3-4B_eagle3" not in named(
        "dflash", "qwen3-4b"
    )
    assert named("eagle3", "llama-3.1-8b-instruct") == ["RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"], "without conversion"
    assert named("eagle2", "qwen3.5-0.8b") == [], "stored with the target, not beside it"
    assert named("eagle3", "smollm2-135m-instruct") == named("eagle3", "qwen3-1.7b", any_model=False) == []


@pytest.mark.parametrize(
    ("tab", "method", "target", "head"),
    [(VisionTab, "eagle2", "llava-1.6-7b", "JLKang/ViSpec-llava-v1.6-vicuna-7b-hf"),
     (VisionTab, "eagle3", "qwen2.5-vl-7b-instruct", "Rayzl/qwen2.5-vl-7b-eagle3-sgl"),
     (ImageTab, "lantern_pp", "anole-7b", "jadohu/anole_drafter")],
)  # fmt: skip
def test_every_tab_offers_the_heads_that_fit_its_target(shared, monkeypatch, tab, method, target, head):
    with gr.Blocks(), gr.Tab() as opened:
        built = tab(shared, opened)
    drop_down, _ = built.fitting(method, target)
    assert built.offers(method) and drop_down.visible and drop_down.value == head
    forms = dict(zip(("basics", "advanced"), request_form.forms(shared.settings, modality=tab.modality), strict=True))
    form = replace(asked(shared, method, target=target, draft=head, **forms), modality=tab.modality)
    monkeypatch.setattr(room, "check", lambda *names, **how: None)
    assert request_form.request(form, shared.settings).draft == head
    assert not built.fitting(built.default_method, built.default_target)[0].visible
    assert built.fitting("autoregressive", built.default_target)[1] == ""
    _, sentence = built.fitting("autoregressive", target)
    assert all_methods()[method].title in sentence


def test_heads_that_do_not_fit_are_said_with_the_way_to_those_that_do(shared):
    def said(method, target, modality="text"):
        return request_form.published(all_methods()[method], target, modality, shared.settings)

    assert "some are for qwen2.5-vl-7b-instruct" in said("eagle3", "scenes-vlm", "vision_language")
    assert "To convert" in said("dream", "llava-1.6-7b", "vision_language")
    assert "published" not in said("eagle3", "smollm2-135m-instruct")
    assert "published" not in request_form.published(all_methods()["eagle2"], "qwen3-4b", "text", Settings(any_model=False))


def test_heads_go_with_their_own_target_and_no_other(shared):
    head = "AngelSlim/Qwen3-1.7B_eagle3"
    fitting = asked(shared, "eagle3", target="qwen3-1.7b", draft=head)
    assert request_form.request(fitting, shared.settings).draft == head
    assert request_form.request(asked(shared, "eagle3", draft=head), shared.settings).draft is None


def test_the_app_s_own_target_is_on_its_list():
    assert ("somebody/else", "somebody/else") in request_form.models("target", Settings(), own="somebody/else")
    assert [name for _, name in request_form.models("target", Settings())].count("smollm2-135m-instruct") == 1


def test_another_method_s_form_is_not_mistaken_for_this_one_s(shared):
    late = asked(shared, "stand", own=request_form.method_answer("prompt_lookup"))
    assert request_form.request(late, shared.settings).parameters == all_methods()["stand"].parameters()


def test_a_recorded_run_sets_the_controls_to_what_it_was_asked(shared):
    run = sample_trace(method="stand", seed=5).run
    given = asked(
        shared,
        run.method,
        run.prompt,
        basics=request_form.forms(shared.settings, run)[0],
        advanced=request_form.forms(shared.settings, run)[1],
    )
    request = request_form.request(given, shared.settings)
    assert (request.temperature, request.seed, request.max_new_tokens) == (0.8, 5, run.max_new_tokens)
    assert request.raw is not run.chat_template


def test_the_list_says_what_cannot_fit_and_the_form_refuses_it(shared, monkeypatch):
    monkeypatch.setattr(room, "limit", lambda place="cpu": int(14e9))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(room, "_to_fetch", lambda entry: 3_000_000_000 * (entry.name == "qwen3-1.7b"))
    titles = {name: title for title, name in request_form.models("target", shared.settings)}
    assert titles["qwen3-8b"] == "Qwen3 8B (needs 18.0 GB of memory, too much here)" and "(" not in titles["qwen3-0.6b"]
    assert titles["qwen3-1.7b"] == "Qwen3 1.7B (3.0 GB from the hub)"
    for changes in ({"target": "qwen3-8b"}, {"method": "speculative_sampling", "draft": "qwen3-8b"}):
        with pytest.raises(OutOfMemory, match="qwen3-8b needs? about|and qwen3-8b need about"):
            request_form.request(asked(shared, **changes), shared.settings)


def test_a_page_offers_what_its_owner_names_and_nothing_else(shared):
    settings = Settings(any_model=False, models=("qwen3-0.6b", "emoji-64", "a/b"))
    offered = [name for _, name in request_form.models("target", settings, own="smollm2-135m-instruct")]
    assert offered == ["smollm2-135m-instruct", "qwen3-0.6b", "a/b"]
    assert request_form.model("a/b", settings) == "a/b"
    for name in ("qwen3-8b", "c/d", "emoji-64"):
        with pytest.raises(BadInput, match="This app runs only the models on its list: qwen3-0.6b, a/b"):
            request_form.model(name, settings)


@pytest.mark.parametrize("name", sorted(all_methods()))
def test_every_parameter_of_every_method_is_a_field_with_its_bounds(name):
    form = json.loads(request_form.method_answer(name))
    parameters = describe(all_methods()[name].parameters)
    assert [field["name"] for field in form["fields"]] == [one.name for one in parameters]
    for field, one in zip(form["fields"], parameters, strict=True):
        assert (field["low"], field["high"], field["unit"]) == (one.bounds.low, one.bounds.high, one.bounds.unit)
        assert field["help"] and field["title"] and form["values"][one.name] == one.default
    assert build(all_methods()[name].parameters, form["values"], name) == all_methods()[name].parameters()


@pytest.mark.parametrize("form", request_form.FORMS.values())
def test_the_common_controls_come_from_dataclasses_too(form):
    for parameters in (form.basics, form.advanced):
        assert build(parameters, json.loads(request_form.answer("any", parameters))["values"], "it") == parameters()


def test_an_upper_bound_can_be_lowered_for_one_app():
    listed = json.loads(request_form.answer("basics", request_form.Basics, high={"max_new_tokens": 64}))["fields"]
    assert {field["name"]: field["high"] for field in listed} == {"temperature": 2.0, "max_new_tokens": 64}


def test_values_of_a_recording_that_a_method_no_longer_has_are_left_out():
    form = json.loads(request_form.method_answer("stand", {"nodes": 24, "gone": 1}))
    assert form["values"]["nodes"] == 24 and "gone" not in form["values"]


def test_one_value_of_a_form_can_be_changed_and_a_broken_form_stays_as_it_is():
    form = request_form.method_answer("stand", {"nodes": 24, "lowest_order": 3})
    assert request_form.read(request_form.replaced(form, "nodes", 30), "stand")[0]["nodes"] == 30
    assert request_form.read(request_form.replaced(form, "nodes", 30), "stand")[0]["lowest_order"] == 3
    assert [request_form.replaced(broken, "nodes", 30) for broken in ("{", "[]", '{"values": 1}')] == ["{", "[]", '{"values": 1}']
