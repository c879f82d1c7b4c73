"""Form of a run: controls generated from parameter dataclasses, and conversion to and from requests.

The value of a form is JSON: {"of", "fields", "values", "given"}. ``given`` holds the values that the page filled in. A value
that differs from ``given`` is an edit by the visitor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr
from msgspec.structs import asdict

from specviz.errors import BadInput
from specviz.interop.client import address
from specviz.methods.registry import Method, build, choice, describe, get, number, switch
from specviz.models import room
from specviz.models.hub import catalog
from specviz.models.hub.pairs import MTP, PAIRS, Pair
from specviz.pipeline.request import Request
from specviz.trace.schema import Run
from specviz.ui import theme
from specviz.ui.archive import Titles
from specviz.ui.settings import Settings
from specviz.ui.stream.engine import SERVED

FORM_LETTERS = 20_000
"""Maximum length of a form's value in characters."""


def title(name: str) -> str:
    """Return the label of a parameter."""
    words = name.replace("_", " ")
    return str(theme.texts()["titles"].get(name, words[:1].upper() + words[1:]))


def answer(
    of: str, parameters: type, values: Mapping[str, Any] | None = None, high: Mapping[str, float] | None = None, own: bool = False
) -> str:
    """Return the value of a form.

    ``values``: values by field, by default the field's default; ``high``: maximum by field, if lower than the dataclass's;
    ``own``: whether ``values`` count as edits of the visitor.
    """
    fields, defaults = [], dict[str, Any]()
    for one in describe(parameters):
        field = {"name": one.name, "kind": one.kind, "title": title(one.name)} | vars(one.bounds)
        fields.append(field | ({"high": high[one.name]} if high and one.name in high else {}))
        defaults[one.name] = one.default
    chosen = {name: (values or {}).get(name, default) for name, default in defaults.items()}
    return json.dumps({"of": of, "fields": fields, "values": chosen, "given": defaults if own else chosen})


def method_answer(method: str, values: Mapping[str, Any] | None = None) -> str:
    """Return the value of the form of a method's parameters."""
    return answer(method, get(method).parameters, values)


def read(payload: str | None, of: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the current and the given values of a form, both empty if the form belongs to another method.

    Raises BadInput for an invalid form.
    """
    try:
        if not isinstance(payload, str) or len(payload) > FORM_LETTERS:
            raise ValueError
        form = json.loads(payload)
        return (dict(form["values"]), dict(form.get("given", ()))) if form["of"] == of else ({}, {})
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        raise BadInput("The settings could not be read. Reload the page and try again.") from None


def replaced(payload: str, name: str, value: Any) -> str:
    """Return a form with one value replaced. An invalid form is returned unchanged."""
    try:
        form_state = json.loads(payload)
        form_state["values"][name] = value
        return json.dumps(form_state)
    except (ValueError, KeyError, TypeError, RecursionError):
        return payload


def filled(offered: str, now: str, edits: bool = False) -> str:
    """Return the form ``offered`` with the values of the form ``now``. ``edits``: take over only edited values.

    Edited values remain edits. Raises BadInput if ``now`` is invalid.
    """
    form = json.loads(offered)
    typed, given = read(now, form["of"])
    kept = {
        name: value
        for name, value in typed.items()
        if name in form["values"] and not (edits and _same(value, given.get(name)))
    }  # fmt: skip
    before = {name: given.get(name) for name in kept}
    return json.dumps(form | {"values": form["values"] | kept, "given": form["given"] | before})


def _same(typed: Any, given: Any) -> bool:
    """Return whether two values are equal. The page sends numbers as text."""
    try:
        return typed == given or float(typed) == float(given)
    except (TypeError, ValueError):
        return False


def form(value: str, **more: Any) -> gr.HTML:
    """Return the component of a form."""
    return theme.html(value, "widgets/form.js", html_template='<div class="sp-form"></div>', **more)


@dataclass(frozen=True)
class Basics:
    """Basic settings of a text run."""

    temperature: float = number(0.0, 0.0, 2.0, "0 always takes the most likely token; above 0, tokens are sampled.", step=0.1)
    max_new_tokens: int = number(96, 1, 512, "The maximum number of new tokens; the model may end its answer earlier.")


@dataclass(frozen=True)
class Advanced:
    """Advanced settings of a text run."""

    top_p: float = number(1.0, 0.01, 1.0, "Sample from the most likely tokens with this total probability.", step=0.05)
    top_k: int = number(0, 0, 1000, "Sample from this many of the most likely tokens; 0 keeps all.")
    seed: int = number(0, 0, 2**31 - 1, "Methods that are exact token for token write the same text for the same seed.")
    prompt_as: str = choice(
        "chat", ("chat", "raw"), "Chat applies the model's chat template; raw lets the model continue the text."
    )
    dtype: str = choice(
        "auto",
        ("auto", "float64", "float32", "bfloat16", "float16", "int8"),
        "Number format of the model; auto picks a fast one for this machine. int8 is for text models on a CPU.",
    )
    device: str = choice("auto", ("auto", "cpu", "cuda"), "Where the model runs; auto takes a GPU if available.")
    tier: str = choice(
        "auto",
        ("auto", "eager", "graph", "compiled"),
        "eager runs passes directly; graph pads them to fixed shapes and replays captured CUDA graphs; compiled fuses kernels.",
    )
    baseline: bool = switch(True, "Then decode the same prompt one token at a time, to measure the speed-up.")


@dataclass(frozen=True)
class ImageBasics:
    """Basic settings of an image run."""

    temperature: float = number(1.0, 0.0, 2.0, "0 always takes the most likely code; pictures look best at about 1.", step=0.1)
    guidance: float = number(
        0.0,
        0.0,
        20.0,
        "How strongly the prompt guides the picture; 1 turns guidance off, 0 is the model's default.",
        step=0.5,
    )
    seed: int = number(
        0,
        0,
        2**31 - 1,
        "For the same seed, a method that is exact token for token draws the same picture as the run without drafts. Above "
        "temperature 0, a method that is exact in distribution draws a different one.",
    )


@dataclass(frozen=True)
class ImageAdvanced:
    """Advanced settings of an image run."""

    top_k: int = number(0, 0, 16384, "Sample from this many of the most likely codes; 0 keeps all.", "codes")
    baseline: bool = switch(True, "Then draw the same picture one code at a time, to measure the speed-up.")


@dataclass(frozen=True)
class Form:
    """Form of a modality. ``most_letters``: maximum length of a prompt."""

    basics: type
    advanced: type
    most_letters: int


TEXT = Form(Basics, Advanced, 24_000)
"""The maximum length rejects prompts that are too long for any model, before a model is loaded."""
IMAGE = Form(ImageBasics, ImageAdvanced, 2000)
FORMS = {"text": TEXT, "vision_language": TEXT, "image": IMAGE}

DEFAULT_TARGETS = {"vision_language": catalog.DEFAULT_VISION_TARGET, "image": catalog.DEFAULT_IMAGE_TARGET}
OWN_DRAFT = ""
"""Value of the draft model control for the shipped draft model."""


@dataclass(frozen=True)
class FormState:
    """Values of the controls, not validated. ``basics``, ``advanced`` and ``own`` are forms as JSON."""

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
    """Build the request. Raises BadInput for an invalid value, and SpecvizError if the models do not fit into memory."""
    form, method = FORMS[form_state.modality], get(form_state.method or "")
    chosen = _checked(form.basics, form_state.basics, "basics") | _checked(form.advanced, form_state.advanced, "advanced")
    if chosen.get("max_new_tokens", 0) > settings.max_new_tokens:
        raise BadInput(f"New tokens is {chosen['max_new_tokens']}; the maximum here is {settings.max_new_tokens}.")
    if chosen.get("tier") == "compiled" and not settings.private:  # its compilers outlive the run that starts them
        raise BadInput("The compiled tier is only for apps that other machines cannot reach. Choose the tier auto.")
    prompt = form_state.prompt if isinstance(form_state.prompt, str) else ""
    if len(prompt) > form.most_letters:
        raise BadInput(f"The prompt has {len(prompt):,} characters; the maximum here is {form.most_letters:,}. Shorten it.")
    is_head = form_state.draft in dict(heads(method.name, form_state.target, settings)).values()
    asked = Request(
        method=method.name,
        prompt=prompt,
        target=model(form_state.target, settings, form_state.modality),
        draft=model(form_state.draft, settings) if form_state.draft and (method.needs_draft or is_head) else None,
        raw=chosen.pop("prompt_as", "") == "raw",
        guidance=chosen.pop("guidance", 0.0) or None,
        parameters=read(form_state.own, method.name)[0],
        image=form_state.picture,
        **{"device": settings.device} | chosen,
    )
    if not asked.target.startswith(SERVED):
        check_room(asked.target, asked.draft, asked.dtype)
    return asked


def check_room(target: str, draft: str | None = None, dtype: str = "auto") -> None:
    """Raise SpecvizError if the models do not fit into the memory of this machine, as far as known without the hub."""
    room.check([name for name in (target, *room.second_models(draft)) if catalog.is_model(name)], dtype, ask=False)


def _checked(parameters: type, payload: str, of: str) -> dict[str, Any]:
    """Return the validated values of a form. Raises BadInput that names the control by its label."""
    try:
        return dict(vars(build(parameters, read(payload, of)[0], "this run")))
    except BadInput as error:
        if not error.field:
            raise
        raise BadInput.of_field(title(error.field), error.field, error.problem) from None


def model(name: str | None, settings: Settings, modality: str = "text") -> str:
    """Return the name of a model. Raises BadInput if this app does not offer the model."""
    model_name = name.strip() if isinstance(name, str) else ""
    known = list(offered(settings, modality))
    if "://" in model_name:  # a pasted address, which may end in /v1
        model_name = SERVED + address(model_name.removeprefix(SERVED))
    if model_name.startswith(SERVED):
        if modality != "text":
            raise BadInput("An inference server is asked for text alone: name it as the target of the Text tab.")
        if model_name.removeprefix(SERVED) not in settings.servers:  # visitors must not make the app connect to other hosts
            raise BadInput(
                "This app sends prompts only to the servers that SPECVIZ_SERVERS named when it started: "
                f"{', '.join(settings.servers) or 'none'}."
            )
        return model_name
    if not model_name or len(model_name) > 300:
        raise BadInput("Choose a target model.")
    if model_name not in known and model_name != settings.target and not settings.any_model:
        raise BadInput(f"This app runs only the models on its list: {', '.join(known)}.")
    return model_name


def fits(pair: Pair, target: str) -> bool:
    """Return whether a pair's heads are for a target, named as in the catalogue or on the hub."""
    return pair.layout != MTP and target in (pair.target, getattr(pair.entry.source, "repository", ""))


def heads(method: str, target: str, settings: Settings) -> Titles:
    """Return the title and name of the published heads that a method reads as they are, for a target.

    A title mentions the size, and heads that are not here and cannot be fetched.
    """
    return [
        (f"{pair.heads} ({pair.head_bytes / 1e9:.1f} GB{room.unreachable(pair.heads)})", pair.heads)
        for pair in PAIRS
        if settings.any_model and pair.method == method and not pair.pickled and fits(pair, target)
    ]


def published(method: Method, target: str, modality: str, settings: Settings) -> str:
    """Return HTML about the target's download, and about published heads that the drop-down of draft models does not list."""
    note = room.note(target) if target in offered(settings, modality) else ""
    words = note and f"{note[:1].upper()}{note[1:]}. "
    pairs = [pair for pair in PAIRS if settings.any_model and pair.layout != MTP and pair.entry.modality == modality]
    fitting = [pair for pair in pairs if fits(pair, target)]
    own = [pair for pair in fitting if pair.method == method.name]
    if convert := [pair.heads for pair in own if pair.pickled]:
        words += f"To convert with <code>specviz convert</code> first: {', '.join(convert)}. "
    elif modality in method.published and not own:
        targets = dict.fromkeys(pair.target for pair in pairs if pair.method == method.name)
        words += f"No heads are published for this target; some are for {', '.join(targets)}. "
    if others := dict.fromkeys(get(pair.method).title for pair in fitting if pair.method != method.name):
        words += f"Heads are published for this target with the method {' or '.join(others)}."
    return words and f'<p class="sp-summary">{words}</p>'


def servers(settings: Settings) -> Titles:
    """Return the title and name of the allowed servers."""
    return [(f"Server at {url.split('://', 1)[1]}", SERVED + url) for url in settings.servers]


def offered(settings: Settings, modality: str = "text", role: str | None = None) -> dict[str, str]:
    """Return the titles of the offered models by name. Models of SPECVIZ_MODELS outside the catalogue count as text models."""
    entries = catalog.entries(modality, role)
    listed = {entry.name: entry.title for entry in entries if not settings.models or entry.name in settings.models}
    catalogued = {entry.name for entry in catalog.entries()}
    return listed | {name: name for name in settings.models if modality == "text" and name not in catalogued}


def models(role: str, settings: Settings, modality: str = "text", own: str = "") -> Titles:
    """Return the title and name of the models offered for a role, and of ``own``, the configured target.

    A title mentions insufficient memory, or the size of the download.
    """
    listed = offered(settings, modality, role)
    if own and own not in listed:
        listed = {own: offered(Settings(), modality).get(own, own), **listed}
    return [(f"{title} ({note})" if (note := room.note(name)) else title, name) for name, title in listed.items()]


def forms(settings: Settings, run: Run | None = None, modality: str = "text", own: bool = False) -> tuple[str, str]:
    """Return the basic and the advanced form with the settings of ``run``, or with the defaults.

    ``own``: whether the settings count as the visitor's edits. Device, dtype and tier keep the defaults.
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
