"""Form of a run: controls made from parameter dataclasses, from them to a checked request, and from a recorded run back to them.

A form's value is JSON text: {"of", "fields", "values", "given"}. ``given`` are the values as the page filled them in; values that
differ from these, or have none there, are the visitor's edits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr
from msgspec.structs import asdict

from specviz.errors import BadInput
from specviz.methods.registry import build, choice, describe, get, number, switch
from specviz.models import room
from specviz.models.hub import catalog
from specviz.pipeline.request import Request
from specviz.trace.schema import Run
from specviz.ui import theme
from specviz.ui.archive import Titles
from specviz.ui.settings import Settings
from specviz.ui.stream.engine import SERVED

FORM_LETTERS = 20_000
"""Maximum number of characters in a form's answer; the page's own answers are far shorter."""


def title(name: str) -> str:
    """Title of a parameter on the page."""
    words = name.replace("_", " ")
    return str(theme.texts()["titles"].get(name, words[:1].upper() + words[1:]))


def fields(parameters: type, high: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
    """Fields of the form for a dataclass. ``high`` lowers upper bounds, by parameter."""
    listed = []
    for parameter in describe(parameters):
        field = {"name": parameter.name, "kind": parameter.kind, "title": title(parameter.name)} | vars(parameter.bounds)
        listed.append(field | ({"high": high[parameter.name]} if high and parameter.name in high else {}))
    return listed


def answer(
    of: str, parameters: type, values: Mapping[str, Any] | None = None, high: Mapping[str, float] | None = None, own: bool = False
) -> str:
    """The form's value: its fields, and ``values`` over the defaults, without those that have no field. ``own``: those that
    differ from a default are the visitor's edits."""
    defaults = {parameter.name: parameter.default for parameter in describe(parameters)}
    chosen = {name: (values or {}).get(name, default) for name, default in defaults.items()}
    return json.dumps({"of": of, "fields": fields(parameters, high), "values": chosen, "given": defaults if own else chosen})


def method_answer(method: str, values: Mapping[str, Any] | None = None) -> str:
    """The form of a method's own parameters."""
    return answer(method, get(method).parameters, values)


def _read(payload: str | None, of: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a form's values as typed and as given; empty, for the defaults, if it shows another method's fields."""
    try:
        if not isinstance(payload, str) or len(payload) > FORM_LETTERS:
            raise ValueError
        form = json.loads(payload)
        return (dict(form["values"]), dict(form.get("given", ()))) if form["of"] == of else ({}, {})
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        raise BadInput("The settings did not arrive as the page sends them. Reload the page and try again.") from None


def values(payload: str | None, of: str) -> dict[str, Any]:
    """Return a form's values as typed; empty, for the defaults, if it shows another method's fields. Raises BadInput."""
    return _read(payload, of)[0]


def replaced(payload: str, name: str, value: Any) -> str:
    """Return the form with one value replaced; unchanged if it is not a valid form."""
    try:
        form_state = json.loads(payload)
        form_state["values"][name] = value
        return json.dumps(form_state)
    except (ValueError, KeyError, TypeError, RecursionError):
        return payload


def filled(offered: str, now: str, edits: bool = False) -> str:
    """Return the form ``offered`` with the values of the form ``now``, or with ``edits`` only the edited ones.

    A value stays an edit as long as it is in the form, whatever the page fills in meanwhile. Raises BadInput for a bad form.
    """
    form = json.loads(offered)
    typed, given = _read(now, form["of"])
    kept = {
        name: value
        for name, value in typed.items()
        if name in form["values"] and not (edits and _same(value, given.get(name)))
    }  # fmt: skip
    before = {name: given.get(name) for name in kept}
    return json.dumps(form | {"values": form["values"] | kept, "given": form["given"] | before})


def _same(typed: Any, given: Any) -> bool:
    """Whether two values are equal; the page sends numbers as they were typed."""
    try:
        return typed == given or float(typed) == float(given)
    except (TypeError, ValueError):
        return False


def form(value: str, **more: Any) -> gr.HTML:
    """A form on the page."""
    return theme.html(value, "widgets/form.js", html_template='<div class="sp-form"></div>', **more)


@dataclass(frozen=True)
class Basics:
    """Settings of every run. The app lowers the upper bound of new tokens."""

    temperature: float = number(0.0, 0.0, 2.0, "0 always takes the likeliest token; above it, tokens are drawn.", step=0.1)
    max_new_tokens: int = number(96, 1, 512, "The run stops after this many, or earlier when the model ends its answer.")


@dataclass(frozen=True)
class Advanced:
    """Settings that most users leave alone."""

    top_p: float = number(1.0, 0.01, 1.0, "Draw only from the likeliest tokens that together have this probability.", step=0.05)
    top_k: int = number(0, 0, 1000, "Draw only from this many of the likeliest tokens; 0 keeps all.")
    seed: int = number(0, 0, 2**31 - 1, "The same seed draws the same tokens with every method that is exact token for token.")
    prompt_as: str = choice(
        "chat", ("chat", "raw"), "Chat wraps the prompt in the model's own template; raw lets the model continue the text."
    )
    dtype: str = choice(
        "auto",
        ("auto", "float64", "float32", "bfloat16", "float16", "int8"),
        "Number format of the model; auto picks one that is fast on this machine. int8 is for text models on a CPU.",
    )
    device: str = choice("auto", ("auto", "cpu", "cuda"), "Where the model runs; auto takes a GPU when there is one.")
    tier: str = choice(
        "auto",
        ("auto", "eager", "graph"),
        "eager runs each pass as it comes, graph pads it to fixed shapes and replays a captured graph.",
    )
    baseline: bool = switch(True, "Afterwards, decode the same prompt one token at a time, to compare the time.")


@dataclass(frozen=True)
class ImageBasics:
    """Settings of every picture."""

    temperature: float = number(1.0, 0.0, 2.0, "0 always takes the likeliest code; pictures look best at about 1.", step=0.1)
    guidance: float = number(
        0.0,
        0.0,
        20.0,
        "How strongly the prompt guides the picture; 1 is no guidance, 0 the model's default.",
        step=0.5,
    )
    seed: int = number(
        0,
        0,
        2**31 - 1,
        "With the same seed, a token-exact method draws the plain run's picture. Above temperature 0, one that is exact in "
        "distribution draws a different picture, and draws it again if its tree's size is fixed.",
    )


@dataclass(frozen=True)
class ImageAdvanced:
    """Settings of a picture that most users leave alone."""

    top_k: int = number(0, 0, 16384, "Draw only from this many of the likeliest codes; 0 keeps all.", "codes")
    baseline: bool = switch(True, "Afterwards, draw the same picture one code at a time, to compare the time.")


@dataclass(frozen=True)
class Form:
    """Form of a modality: its two dataclasses, the maximum number of characters in a prompt, and the message for an empty one."""

    basics: type
    advanced: type
    most_letters: int
    empty: str


TEXT = Form(Basics, Advanced, 24_000, "The prompt is empty; write something, or click an example.")
"""No model here reads a longer prompt, so a pasted book is refused before anything is loaded."""
IMAGE = Form(ImageBasics, ImageAdvanced, 2000, 'Say what to draw, for example "red heart, noto style", or click an example.')
FORMS = {"text": TEXT, "vision_language": TEXT, "image": IMAGE}

DEFAULT_TARGETS = {"vision_language": catalog.DEFAULT_VISION_TARGET, "image": catalog.DEFAULT_IMAGE_TARGET}
OWN_DRAFT = ""
"""The draft model that belongs to the target."""


@dataclass(frozen=True)
class FormState:
    """Current values of the controls, unchecked. The three forms are JSON text, see ``controls``."""

    method: str
    target: str
    prompt: str
    basics: str
    advanced: str
    own: str
    draft: str | None = None
    picture: bytes | None = None
    modality: str = "text"


def request(form_state: FormState, settings: Settings) -> Request:
    """Build the request. Raises BadInput naming the control and its permitted values."""
    form, method = FORMS[form_state.modality], get(form_state.method or "")
    chosen = _checked(form.basics, form_state.basics, "basics") | _checked(form.advanced, form_state.advanced, "advanced")
    if chosen.get("max_new_tokens", 0) > settings.max_new_tokens:
        raise BadInput(f"New tokens is {chosen['max_new_tokens']}; the maximum here is {settings.max_new_tokens}.")
    prompt = form_state.prompt
    if not isinstance(prompt, str) or not prompt.strip():
        raise BadInput(form.empty)
    if len(prompt) > form.most_letters:
        raise BadInput(f"The prompt has {len(prompt):,} characters; the maximum here is {form.most_letters:,}. Shorten it.")
    asked = Request(
        method=method.name,
        prompt=prompt,
        target=model(form_state.target, settings, form_state.modality),
        draft=model(form_state.draft, settings) if method.needs_draft and form_state.draft else None,
        raw=chosen.pop("prompt_as", "") == "raw",
        guidance=chosen.pop("guidance", 0.0) or None,
        parameters=values(form_state.own, method.name),
        image=form_state.picture,
        **{"device": settings.device} | chosen,
    )
    if not asked.target.startswith(SERVED):
        check_room(asked.target, asked.draft, asked.dtype)
    return asked


def check_room(target: str, draft: str | None = None, dtype: str = "auto") -> None:
    """Raise SpecvizError when these models cannot fit on this machine, as far as that is known without the hub."""
    room.check([name for name in (target, *room.second_models(draft)) if catalog.is_model(name)], dtype, ask=False)


def _checked(parameters: type, payload: str, of: str) -> dict[str, Any]:
    """Return the form's values, checked, over the defaults. Raises BadInput naming a control by its title on the page."""
    try:
        return dict(vars(build(parameters, values(payload, of), "this run")))
    except BadInput as error:
        if error.field is None:
            raise
        raise BadInput.of_field(title(error.field), error.field, error.problem) from None


def model(name: str | None, settings: Settings, modality: str = "text") -> str:
    """Return a model's name. Raises BadInput for one that this copy of the app does not offer."""
    model_name = name.strip() if isinstance(name, str) else ""
    known = list(offered(settings, modality))
    if model_name.startswith(SERVED):
        if model_name.removeprefix(SERVED) not in settings.servers:  # a visitor must not point the app to other hosts
            listed = ", ".join(settings.servers) or "none"
            raise BadInput(f"This app sends prompts only to the servers that SPECVIZ_SERVERS names: {listed}.")
        return model_name
    if not model_name or len(model_name) > 300:
        raise BadInput("Choose a target model.")
    if model_name not in known and model_name != settings.target and not settings.any_model:
        raise BadInput(f"This app runs only the models on its list: {', '.join(known)}.")
    return model_name


def servers(settings: Settings) -> Titles:
    """Title and name of the permitted servers, as targets."""
    return [(f"Server at {url.split('://', 1)[1]}", SERVED + url) for url in settings.servers]


def offered(settings: Settings, modality: str = "text", role: str | None = None) -> dict[str, str]:
    """Titles by name of the models that the page offers; models of SPECVIZ_MODELS outside the catalogue are for text."""
    entries = catalog.entries(modality, role)
    listed = {entry.name: entry.title for entry in entries if not settings.models or entry.name in settings.models}
    catalogued = {entry.name for entry in catalog.entries()}
    return listed | {name: name for name in settings.models if modality == "text" and name not in catalogued}


def models(role: str, settings: Settings, modality: str = "text", own: str = "") -> Titles:
    """Title and name of every model offered for a role, and of ``own``, the configured target.

    A title states why a model cannot fit on this machine, or the download that it still requires.
    """
    listed = offered(settings, modality, role)
    if own and own not in listed:
        listed = {own: offered(Settings(), modality).get(own, own), **listed}
    return [(f"{title} ({note})" if (note := room.note(name)) else title, name) for name, title in listed.items()]


def forms(settings: Settings, run: Run | None = None, modality: str = "text", own: bool = False) -> tuple[str, str]:
    """Basic and advanced form with the settings of a run, or with the defaults. ``own``: the visitor chose them.

    Device, number format and tier keep this machine's defaults.
    """
    values: dict[str, Any] = {"device": settings.device}
    if run is not None:
        values |= asdict(run.sampling) | {"max_new_tokens": min(run.max_new_tokens, settings.max_new_tokens)}
        values |= {"prompt_as": "chat" if run.chat_template else "raw", "guidance": run.guidance or 0.0}
    form, high = FORMS[modality], {"max_new_tokens": settings.max_new_tokens}
    return (
        answer("basics", form.basics, values, high, own),
        answer("advanced", form.advanced, values, own=own),
    )
