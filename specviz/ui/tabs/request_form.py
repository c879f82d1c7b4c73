"""Form of a run: from the controls to a checked request, and from a recorded run back to the controls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specviz.errors import BadInput
from specviz.methods import registry
from specviz.methods.parameters import build
from specviz.models import room
from specviz.models.hub import catalog
from specviz.pipeline.request import Request
from specviz.trace.schema import Run
from specviz.ui.settings import Settings
from specviz.ui.stream.served import SERVED
from specviz.ui.widgets import controls

PROMPT_LETTERS = 24_000
"""Maximum number of characters in a prompt: no model here reads more, and a pasted book is refused before anything is loaded."""

OWN_DRAFT = ""
"""The draft model that belongs to the target."""


@dataclass(frozen=True)
class FormState:
    """Current values of the controls, unchecked. The three forms are JSON text, see ``controls``."""

    method: str
    target: str
    draft: str | None
    prompt: str
    basics: str
    advanced: str
    own: str
    modality: str = "text"
    image: bytes | None = None


def request(form_state: FormState, settings: Settings) -> Request:
    """Build the request. Raises BadInput naming the control and its permitted values."""
    method = registry.get(form_state.method or "")
    basics = _checked(controls.Basics, form_state.basics, "basics")
    advanced = _checked(controls.Advanced, form_state.advanced, "advanced")
    if basics.max_new_tokens > settings.max_new_tokens:
        raise BadInput(f"New tokens is {basics.max_new_tokens}; here the most is {settings.max_new_tokens}.")
    asked = Request(
        method=method.name,
        prompt=prompt(form_state.prompt, "The prompt is empty; write something, or click an example.", PROMPT_LETTERS),
        target=model(form_state.target, settings, form_state.modality),
        draft=model(form_state.draft, settings) if method.needs_draft and form_state.draft else None,
        raw=advanced.prompt_as == "raw",
        max_new_tokens=basics.max_new_tokens,
        temperature=basics.temperature,
        top_k=advanced.top_k,
        top_p=advanced.top_p,
        seed=advanced.seed,
        dtype=advanced.dtype,
        device=advanced.device,
        tier=advanced.tier,
        parameters=controls.values(form_state.own, method.name),
        baseline=advanced.baseline,
        image=form_state.image,
    )
    if not asked.target.startswith(SERVED):
        check_room(asked.target, asked.draft, asked.dtype)
    return asked


def check_room(target: str, draft: str | None = None, dtype: str = "auto") -> None:
    """Raise SpecvizError when these models cannot fit on this machine, as far as that is known without the hub."""
    room.check([name for name in (target, *room.second_models(draft)) if catalog.is_model(name)], dtype, ask=False)


def _checked(parameters: type, payload: str, of: str) -> Any:
    """Return the form's values as its dataclass. Raises BadInput naming a control by its title on the page."""
    try:
        return build(parameters, controls.values(payload, of), "this run")
    except BadInput as error:
        if error.field is None:
            raise
        raise BadInput.of_field(controls.title(error.field), error.field, error.problem) from None


def prompt(text: str | None, empty: str, most: int) -> str:
    """Return the prompt as written. Raises BadInput when it is too long or, with the message ``empty``, when it is empty."""
    if not isinstance(text, str) or not text.strip():
        raise BadInput(empty)
    if len(text) > most:
        raise BadInput(f"The prompt has {len(text):,} characters; at most {most:,} make sense here. Shorten it.")
    return text


def model(name: str | None, settings: Settings, modality: str = "text") -> str:
    """Return a model's name. Raises BadInput for one that this copy of the app does not offer."""
    model_name = name.strip() if isinstance(name, str) else ""
    known = list(offered(settings, modality))
    if model_name.startswith(SERVED):
        return _allowed(model_name, settings)
    if not model_name or len(model_name) > 300:
        raise BadInput("Choose a target model.")
    if model_name not in known and model_name != settings.target and not settings.any_model:
        raise BadInput(f"This app runs only the models on its list: {', '.join(known)}.")
    return model_name


def _allowed(name: str, settings: Settings) -> str:
    """Return the name of a listed server. Raises BadInput for other hosts, to which a visitor must not point the app."""
    if name.removeprefix(SERVED) not in settings.servers:
        listed = ", ".join(settings.servers) or "none"
        raise BadInput(f"This app sends prompts only to the servers that SPECVIZ_SERVERS names: {listed}.")
    return name


def servers(settings: Settings) -> list[tuple[str, str]]:
    """Title and name of the permitted servers, as targets."""
    return [(f"Server at {url.split('://', 1)[1]}", SERVED + url) for url in settings.servers]


def offered(settings: Settings, modality: str = "text", role: str | None = None) -> dict[str, str]:
    """Titles by name of the models that the page offers; models of SPECVIZ_MODELS outside the catalogue are for text."""
    entries = catalog.entries(modality, role)
    listed = {entry.name: entry.title for entry in entries if not settings.models or entry.name in settings.models}
    catalogued = {entry.name for entry in catalog.entries()}
    return listed | {name: name for name in settings.models if modality == "text" and name not in catalogued}


def models(role: str, settings: Settings, modality: str = "text", own: str = "") -> list[tuple[str, str]]:
    """Title and name of every model offered for a role, and of ``own``, the configured target.

    A title states why a model cannot fit on this machine, or the download that a model not yet here requires.
    """
    listed = offered(settings, modality, role)
    if own and own not in listed:
        listed = {own: offered(Settings(), modality).get(own, own), **listed}
    return [(f"{title} ({note})" if (note := room.note(name)) else title, name) for name, title in listed.items()]


def forms(settings: Settings, run: Run | None = None) -> tuple[str, str]:
    """Basic and advanced form with the settings of a recorded run, or with the defaults."""
    return basics(settings, run), advanced(settings, run)


def basics(settings: Settings, run: Run | None = None) -> str:
    """Basic form with the settings of a recorded run, or with the defaults."""
    values = {} if run is None else {"temperature": run.sampling.temperature, "max_new_tokens": run.max_new_tokens}
    listed = controls.fields(controls.Basics, {"max_new_tokens": settings.max_new_tokens})
    values = values | {"max_new_tokens": min(values["max_new_tokens"], settings.max_new_tokens)} if values else values
    return controls.answer("basics", listed, controls.Basics, values)


def advanced(settings: Settings, run: Run | None = None) -> str:
    """Advanced form with the settings of a recorded run, or with the defaults. Device, number format and tier keep this machine's
    defaults."""
    values: dict[str, Any] = {"device": settings.device}
    if run is not None:
        sampling = run.sampling
        values |= {"top_p": sampling.top_p, "top_k": sampling.top_k, "seed": sampling.seed}
        values |= {"prompt_as": "chat" if run.chat_template else "raw"}
    return controls.answer("advanced", controls.fields(controls.Advanced), controls.Advanced, values)
