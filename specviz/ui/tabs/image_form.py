"""Form of the Image tab: from its controls to a request and back, its examples, and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specviz.errors import BadInput
from specviz.methods import registry
from specviz.methods.parameters import build, number, switch
from specviz.models.hub import catalog
from specviz.pipeline.request import Request
from specviz.trace.schema import Run
from specviz.ui.settings import Settings
from specviz.ui.tabs import request_form
from specviz.ui.widgets import controls

PROMPT_LETTERS = 2000
EMPTY = 'Say what to draw, for example "red heart, noto style", or click an example.'
METHOD = "mulo_sd"
"""The method chosen when the page opens."""

EXAMPLES: Sequence[tuple[str, tuple[str, ...]]] = (
    (
        "Seen in training",
        (
            "red apple, noto style",
            "grinning face, noto style",
            "sunflower, noto style",
            "red heart, noto style, on yellow",
        ),
    ),
    (
        "Held out of training",
        ("astonished face, fluent style", "tiger, twemoji style", "mushroom, noto style", "doughnut, fluent style"),
    ),
    ("Odd ones", ("green apple with a crown", "zxqv blorp", "a cat that is also a cloud")),
)


@dataclass(frozen=True)
class Basics:
    """Settings of every picture."""

    temperature: float = number(
        1.0, 0.0, 2.0, "0 always takes the likeliest code; pictures want to be drawn at about 1.", step=0.1
    )
    guidance: float = number(
        0.0,
        0.0,
        20.0,
        "How hard the picture follows the prompt; 1 is not at all harder, 0 what the model was made for.",
        step=0.5,
    )
    seed: int = number(
        0,
        0,
        2**31 - 1,
        "A token-exact method draws the plain run's picture of the same seed. Above temperature 0 another exact one draws a "
        "different picture of the same distribution, and the same one again where its tree's size is stated.",
    )


@dataclass(frozen=True)
class Advanced:
    """Settings that most users leave alone."""

    top_k: int = number(0, 0, 16384, "Draw only from this many of the likeliest codes; 0 keeps all.", "codes")
    baseline: bool = switch(True, "Afterwards, draw the same picture one code at a time, to compare the time.")


@dataclass(frozen=True)
class ImageFormState:
    """Current values of the controls, unchecked. The forms are JSON text, see ``controls``."""

    method: str
    target: str
    prompt: str
    basics: str
    advanced: str
    own: str


def request(form_state: ImageFormState, settings: Settings) -> Request:
    """Build the request. Raises BadInput naming the control and its permitted values."""
    method = registry.get(form_state.method or "")
    basics = build(Basics, controls.values(form_state.basics, "image-basics"), "this run")
    advanced = build(Advanced, controls.values(form_state.advanced, "image-advanced"), "this run")
    return Request(
        method=method.name,
        prompt=request_form.prompt(form_state.prompt, EMPTY, PROMPT_LETTERS),
        target=_target(form_state.target, settings),
        temperature=basics.temperature,
        top_k=advanced.top_k,
        seed=basics.seed,
        guidance=basics.guidance or None,
        device=settings.device,
        parameters=controls.values(form_state.own, method.name),
        baseline=advanced.baseline,
    )


def _target(name: str | None, settings: Settings) -> str:
    target = name.strip() if isinstance(name, str) else ""
    known = list(request_form.offered(settings, catalog.IMAGE, catalog.TARGET))
    if target not in known and not settings.any_model:
        raise BadInput(f"This app draws only with the models on its list: {', '.join(known)}.")
    request_form.check_room(target or catalog.DEFAULT_IMAGE_TARGET)
    return target or catalog.DEFAULT_IMAGE_TARGET


def targets(settings: Settings) -> list[tuple[str, str]]:
    """Title and name of every image model that the page offers."""
    return request_form.models(catalog.TARGET, settings, catalog.IMAGE, catalog.DEFAULT_IMAGE_TARGET)


def basics(run: Run | None = None) -> str:
    """Basic form with the settings of a recorded run, or with the defaults."""
    values: dict[str, Any] = {}
    if run is not None:
        values = {"temperature": run.sampling.temperature, "seed": run.sampling.seed, "guidance": run.guidance or 0.0}
    return controls.answer("image-basics", controls.fields(Basics), Basics, values)


def advanced(run: Run | None = None) -> str:
    """Advanced form with the settings of a recorded run, or with the defaults."""
    values = {} if run is None else {"top_k": run.sampling.top_k}
    return controls.answer("image-advanced", controls.fields(Advanced), Advanced, values)
