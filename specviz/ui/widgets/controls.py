"""Form generated from a parameter dataclass, and the checked values of its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.errors import BadInput
from specviz.methods import registry
from specviz.methods.parameters import Parameter, choice, describe, number, switch
from specviz.ui import theme

FORM_LETTERS = 20_000
"""Maximum number of characters in a form's answer; the page's own answers are far shorter."""


@dataclass(frozen=True)
class Basics:
    """Settings of every run. The app lowers the upper bound of new tokens, see :func:`fields`."""

    temperature: float = number(0.0, 0.0, 2.0, "0 always takes the likeliest token; above it, tokens are drawn.", step=0.1)
    max_new_tokens: int = number(96, 1, 512, "The run stops after this many, or earlier when the model ends its answer.")


@dataclass(frozen=True)
class Advanced:
    """Settings that most users leave alone."""

    top_p: float = number(1.0, 0.01, 1.0, "Draw only from the likeliest tokens that together have this probability.", step=0.05)
    top_k: int = number(0, 0, 1000, "Draw only from this many of the likeliest tokens; 0 keeps all.")
    seed: int = number(0, 0, 2**31 - 1, "The same seed draws the same tokens with every method that is exact token for token.")
    prompt_as: str = choice(
        "chat", ("chat", "raw"), "Chat wraps the prompt in the model's own template; raw lets it continue the text."
    )
    dtype: str = choice(
        "auto",
        ("auto", "float64", "float32", "bfloat16", "float16"),
        "Number format of the model; auto takes what this machine is fast at.",
    )
    device: str = choice("auto", ("auto", "cpu", "cuda"), "Where the model runs; auto takes a GPU when there is one.")
    tier: str = choice(
        "auto",
        ("auto", "eager", "graph"),
        "eager runs each pass as it comes, graph pads it to fixed shapes and replays a recording.",
    )
    baseline: bool = switch(True, "Afterwards, decode the same prompt one token at a time, to compare the time.")


TITLES = {
    "max_new_tokens": "New tokens",
    "top_p": "Top-p",
    "top_k": "Top-k",
    "prompt_as": "Prompt as",
    "factor": "λ",
    "tau": "τ",
    "k": "Nearest latent codes k",
    "dtype": "Number format",
    "baseline": "Time the autoregressive run too",
}


def title(name: str) -> str:
    """Title of a parameter on the page."""
    words = name.replace("_", " ")
    return TITLES.get(name, words[:1].upper() + words[1:])


def fields(parameters: type, high: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
    """Fields of the form for a dataclass. ``high`` lowers upper bounds, by parameter."""
    return [_field(parameter, (high or {}).get(parameter.name)) for parameter in describe(parameters)]


def _field(parameter: Parameter, high: float | None) -> dict[str, Any]:
    bounds = parameter.bounds
    return {
        "name": parameter.name,
        "kind": parameter.kind,
        "title": title(parameter.name),
        "help": bounds.help,
        "unit": bounds.unit,
        "low": bounds.low,
        "high": bounds.high if high is None else high,
        "step": bounds.step,
        "choices": list(bounds.choices),
    }


def answer(of: str, listed: list[dict[str, Any]], parameters: type, values: Mapping[str, Any] | None = None) -> str:
    """The form's value: its fields, and ``values`` over the defaults. Values without a field are left out."""
    chosen = {parameter.name: parameter.default for parameter in describe(parameters)}
    chosen.update({name: value for name, value in (values or {}).items() if name in chosen})
    return json.dumps({"of": of, "fields": listed, "values": chosen})


def method_answer(method: str, values: Mapping[str, Any] | None = None) -> str:
    """The form of a method's own parameters."""
    parameters = registry.get(method).parameters
    return answer(method, fields(parameters), parameters, values)


def values(payload: str | None, of: str) -> dict[str, Any]:
    """Return a form's values as typed; empty, for the defaults, if it shows another method's fields. Raises BadInput."""
    if not isinstance(payload, str) or len(payload) > FORM_LETTERS:
        raise BadInput("The settings did not arrive as the page sends them. Reload the page and try again.")
    try:
        form = json.loads(payload)
        return dict(form["values"]) if form["of"] == of else {}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInput("The settings did not arrive as the page sends them. Reload the page and try again.") from None


def replaced(payload: str, name: str, value: Any) -> str:
    """Return the form with one value replaced; unchanged if it is no valid form."""
    try:
        form_state = json.loads(payload)
        form_state["values"][name] = value
        return json.dumps(form_state)
    except (ValueError, KeyError, TypeError, RecursionError):
        return payload


@dataclass(frozen=True)
class FormValues:
    """The prompt and the two forms of every method, as a tab filled them in or as they are now. The forms are JSON text.

    A form does not record who filled it in, so each tab remembers its own values; any that differ are the visitor's edits.
    An edit stays the visitor's as long as it is in the form, whatever the tab fills in meanwhile.
    """

    prompt: str
    basics: str
    advanced: str


def merge_edits(given: FormValues, now: FormValues, offered: FormValues) -> tuple[FormValues, FormValues]:
    """Return ``offered`` with the visitor's edits since ``given``, and the values that count as given from now on.

    Raises BadInput for a malformed form.
    """
    own_prompt = now.prompt.strip() != given.prompt.strip()
    basics, given_basics = _merge_form(given.basics, now.basics, offered.basics)
    advanced, given_advanced = _merge_form(given.advanced, now.advanced, offered.advanced)
    shown = FormValues(now.prompt if own_prompt else offered.prompt, basics, advanced)
    return shown, FormValues(given.prompt if own_prompt else offered.prompt, given_basics, given_advanced)


def _merge_form(given: str, now: str, offered: str) -> tuple[str, str]:
    form = json.loads(offered)
    before = json.loads(given)["values"]
    own = {name: value for name, value in values(now, form["of"]).items() if name in before and not _same(value, before[name])}
    remembered = form | {"values": form["values"] | {name: before[name] for name in own}}
    return json.dumps(form | {"values": form["values"] | own}), json.dumps(remembered)


def _same(typed: Any, given: Any) -> bool:
    """Whether two values are equal; the page sends numbers as they were typed."""
    try:
        return typed == given or float(typed) == float(given)
    except (TypeError, ValueError):
        return False


def form(value: str, **more: Any) -> gr.HTML:
    """A form on the page."""
    return gr.HTML(
        value,
        html_template='<div class="sp-form"></div>',
        js_on_load=theme.source("widgets/form.js"),
        apply_default_css=False,
        **more,
    )
