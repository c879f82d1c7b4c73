"""The interface for programs: what it is given is refused in a sentence, never dropped and never a traceback."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from specviz.errors import BadInput, SpecvizError
from specviz.ui import api
from specviz.ui.app_state import AppState
from specviz.ui.tabs import request_form
from tests.support.fakes.ui import app


def asked(shared: AppState, method: Any = "prompt_lookup", draft: Any = "", target: Any = "", **more: Any) -> Any:
    """The request that a call would make."""
    basics = {"temperature": more.pop("temperature", 0.0), "max_new_tokens": more.pop("max_new_tokens", 8)}
    common = {"seed": 0, "top_p": 1.0, "top_k": 0, "baseline": False, "raw": False}
    own, prompt = more.pop("parameters", "{}"), more.pop("prompt", "hello")
    found = api.asked(shared, (method, target, draft, prompt), basics, {**common, **more}, own)
    return request_form.request(found, shared.settings)


def test_a_draft_is_used_or_refused(tmp_path: Path) -> None:
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
def test_hostile_values_are_refused_in_a_sentence(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(SpecvizError) as refused:
        asked(app(tmp_path), **given)
    assert len(str(refused.value)) < 1500


@pytest.mark.parametrize("value", ["false", "true", "", 0, 1, None, []])
@pytest.mark.parametrize("switch", api.SWITCHES)
def test_a_switch_is_true_or_false_and_nothing_that_looks_like_it(tmp_path: Path, switch: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"{switch} is .*give true or false"):
        asked(app(tmp_path), **{switch: value})


def test_every_switch_of_the_interface_is_checked(tmp_path: Path) -> None:
    with gr.Blocks() as page:
        api.register(app(tmp_path))
    run = next(function for function in page.fns.values() if function.api_name == "run")
    given = inspect.signature(run.fn).parameters.values()  # type: ignore[arg-type]
    assert {one.name for one in given if one.annotation == "bool"} == set(api.SWITCHES)


@pytest.mark.parametrize("text", ["[]", "5", "{", "[" * 100_000, 5, "9" * 5000])
def test_parameters_that_are_no_object_are_refused(tmp_path: Path, text: Any) -> None:
    with pytest.raises((gr.Error, SpecvizError)):
        asked(app(tmp_path), parameters=text)
