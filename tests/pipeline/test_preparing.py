"""Which kind of target a name stands for, and what a request for the wrong kind is told; no model is loaded."""

import json

import pytest

from specviz.errors import BadInput, ModelUnavailable
from specviz.models.hub.prepare import modality_of
from specviz.pipeline.request import Request
from specviz.pipeline.runner import prepare


@pytest.mark.parametrize(
    ("kind", "modality"),
    [("llama", "text"), ("janus", "image"), ("emu3", "image"), ("smolvlm", "vision_language"), ("", "text")],
)
def test_a_folder_says_by_its_config_what_it_works_on(tmp_path, kind, modality):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    assert modality_of(str(tmp_path)) == modality


def test_an_error_of_a_parameter_names_its_field():
    """So that a form may call it by the name it has on the page."""
    with pytest.raises(BadInput, match=r"^STAND's parameter nodes is 0.5; give a whole number") as met:
        prepare(Request("stand", "hello", "nobody/has-this", parameters={"nodes": "0.5"}))
    assert met.value.field == "nodes" and str(met.value).endswith(met.value.problem)
    with pytest.raises(BadInput, match="^top_p is nan") as met:
        Request("stand", "hello", top_p=float("nan"))
    assert met.value.field == "top_p"
    with pytest.raises(BadInput, match="no method") as met:
        prepare(Request("no_such_method", "hello"))
    assert met.value.field is None


def test_a_folder_that_is_no_model_is_left_to_the_loader(tmp_path):
    with pytest.raises(ModelUnavailable, match="safetensors"):
        prepare(Request("autoregressive", "hello", str(tmp_path)))
