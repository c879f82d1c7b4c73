"""Form of a run: from the controls to a checked request, and from a recorded run back to the controls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict

from specviz.errors import BadInput
from specviz.methods import registry
from specviz.methods.registry import build, choice, number, switch
from specviz.models import room
from specviz.models.hub import catalog
from specviz.pipeline.request import Request
from specviz.trace.schema import Run
from specviz.ui.archive import Titles
from specviz.ui.settings import Settings
from specviz.ui.stream.engine import SERVED
from specviz.ui.widgets import controls


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
        ("auto", "float64", "float32", "bfloat16", "float16"),
        "Number format of the model; auto picks one that is fast on this machine.",
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
    form, method = FORMS[form_state.modality], registry.get(form_state.method or "")
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
        parameters=controls.values(form_state.own, method.name),
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
        return dict(vars(build(parameters, controls.values(payload, of), "this run")))
    except BadInput as error:
        if error.field is None:
            raise
        raise BadInput.of_field(controls.title(error.field), error.field, error.problem) from None


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
        controls.answer("basics", form.basics, values, high, own),
        controls.answer("advanced", form.advanced, values, own=own),
    )
