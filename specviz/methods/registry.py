"""Registry of methods: cards, parameters with units and bounds, and the resources that a method is composed from.

Controls, command-line options and validation are derived from the fields of a method's parameter dataclass. Listing methods does
not import torch.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import math
import pkgutil
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from specviz.errors import BadInput, shown
from specviz.methods.results import filled
from specviz.paths import ASSETS

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.drafting.runtimes.language_model import DraftModel
    from specviz.drafting.runtimes.visual_context import Layout
    from specviz.engine.cost import CostCurve, RunCosts
    from specviz.engine.interfaces import Target
    from specviz.engine.sampling import Warp
    from specviz.engine.tree import TreeShape
    from specviz.methods import parts
    from specviz.methods.easyspec.layer_parallel import GroupedModel
    from specviz.methods.mulo_sd.coarse_rows import CoarsePartner
    from specviz.methods.polybasic.intermediate import IntermediateModel
else:

    class _Parts:
        """Proxy of :mod:`specviz.methods.parts` that imports the module, and torch, on first use."""

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module("specviz.methods.parts"), name)

    parts = _Parts()

Parameters = TypeVar("Parameters")
Resources = TypeVar("Resources")
Kept = TypeVar("Kept")

TREES = ASSETS / "trees"
PUBLISHED = TREES / "published.json"
FAMILIES = {
    "none": "No draft",
    "model": "A second model drafts",
    "memory": "Drafts from earlier text",
    "features": "Drafts from the target's hidden states",
    "heads": "Several tokens per drafter pass",
    "judge": "Other verification rules",
    "other": "More",
}
"""Title by family, in the order of the method picker."""


@dataclass(frozen=True)
class Bounds:
    """Help text, unit and bounds of a parameter: either ``choices``, or ``low`` and ``high``, or neither for a switch."""

    help: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    step: float | None = None


@dataclass(frozen=True)
class Parameter:
    """Description of a parameter for user interfaces. ``kind``: "int", "float", "bool" or "str"."""

    name: str
    kind: str
    default: Any
    bounds: Bounds


def number(default: float, low: float, high: float, help: str, unit: str = "", step: float | None = None) -> Any:
    """Return a dataclass field for a number from ``low`` to ``high``, both included. The annotation is int or float."""
    return field(default=default, metadata={"bounds": Bounds(help, unit, low, high, step=step)})


def choice(default: str, choices: tuple[str, ...], help: str) -> Any:
    """Return a dataclass field for one of ``choices``."""
    return field(default=default, metadata={"bounds": Bounds(help, choices=choices)})


def switch(default: bool, help: str) -> Any:
    """Return a dataclass field for True or False."""
    return field(default=default, metadata={"bounds": Bounds(help)})


@dataclass(frozen=True)
class NoParameters:
    """Parameters of a method without parameters."""


def describe(parameters: type) -> tuple[Parameter, ...]:
    """Return the parameters of a parameter dataclass, in order."""
    described = []
    for definition in fields(parameters):
        kind = definition.type if isinstance(definition.type, str) else definition.type.__name__
        if kind not in {"int", "float", "bool", "str"} or definition.default is MISSING:
            raise TypeError(f"parameter {definition.name} needs a default and one of the types int, float, bool, str")
        described.append(Parameter(definition.name, kind, definition.default, definition.metadata["bounds"]))
    return tuple(described)


def build(parameters: type, values: Mapping[str, Any], method: str) -> Any:
    """Build the dataclass ``parameters`` from ``values`` by name, as text or numbers.

    Raises BadInput for an unknown name or an invalid value.
    """
    known = {parameter.name: parameter for parameter in describe(parameters)}
    for name in values:
        if name not in known:
            names = ", ".join(known) or "none"
            raise BadInput(f"{method} has no parameter {shown(name)}; its parameters are: {names}.")
    return parameters(**{name: _value(known[name], value, method) for name, value in values.items()})


def _value(parameter: Parameter, value: Any, method: str) -> Any:
    what = f"{method}'s parameter {parameter.name}"
    if parameter.kind == "bool":
        word = _written(value).lower()
        if word not in "true 1 yes on false 0 no off".split():
            raise BadInput.of_field(what, parameter.name, f"is {shown(value)}; give true or false.")
        return word in "true 1 yes on".split()
    if parameter.bounds.choices or parameter.kind == "str":
        if _written(value) not in parameter.bounds.choices:
            raise BadInput.of_field(
                what, parameter.name, f"is {shown(value)}; choose one of {', '.join(parameter.bounds.choices)}."
            )
        return _written(value)
    low, high = parameter.bounds.low, parameter.bounds.high
    assert low is not None and high is not None, "a number has bounds"
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or not low <= number <= high or (parameter.kind == "int" and number != int(number)):
        kind = "a whole number" if parameter.kind == "int" else "a number"
        text = f"{number:.12g}" if math.isfinite(number) else shown(value)
        raise BadInput.of_field(what, parameter.name, f"is {text}; give {kind} from {low} to {high}.")
    return int(number) if parameter.kind == "int" else number


def _written(value: Any) -> str:
    try:
        return str(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return ""


def published_tree(name: str) -> TreeShape:
    """Return the tree ``name`` of ``assets/trees/published.json``. The file has the number of children of each node, by level."""
    from specviz.engine.tree import shape_from_counts

    return shape_from_counts(json.loads(PUBLISHED.read_text("utf-8"))[name]["counts"])


class UserMemory(Protocol):
    """Store for objects that outlive a run, one per user."""

    def remember(self, key: tuple[Hashable, ...], make: Callable[[], Any]) -> Any:
        """Return the object under ``key``; if missing, create it with ``make``."""


@dataclass
class MethodResources(ABC):
    """Resources for a target of any modality.

    ``prompt_key``: key of the prompt, for stores that belong to one prompt. ``draft_name``: draft model named by the user, or "".
    ``uses_shipped_weights``: False if ``drafter_weights`` returns networks by others, which the shipped calibrations do not fit.
    ``guidance``: (scale, empty prompt) of classifier-free guidance, with logits u + scale (c - u); None: no guidance. ``grid``:
    (rows, columns) of an image to generate. ``picture``: layout of a picture in the prompt; None for a text prompt.
    """

    modality: ClassVar[str]
    target: Target
    warp: Warp
    prompt_key: str
    memory: UserMemory
    draft_name: str | None = None
    uses_shipped_weights: bool = True
    guidance: tuple[float, tuple[int, ...]] | None = None
    grid: tuple[int, int] | None = None
    picture: Layout | None = None
    costs: RunCosts | None = None

    def cost_curve(self) -> CostCurve:
        """Return the cost of a target pass by number of nodes, estimated from all passes so far.

        Returns the same object until the estimate changes.
        """
        assert self.costs is not None, "preparing a run must set costs"
        return self.costs.curve()

    @abstractmethod
    def drafter_weights(self, kind: str) -> Any:
        """Return the drafter network of this ``kind`` for the target, such as "eagle3" or "medusa".

        Raises ModelUnavailable if there is none.
        """

    def forward_cost(self, network: Any, rows: int, taught: bool = True) -> float:
        """Return the milliseconds of a forward of a drafter's ``network`` over ``rows`` rows on this machine.

        The network is timed before the first run, unless ``network`` is None. ``taught``: update the cost from measured draft
        times.
        """
        from specviz.drafting.networks.forward_cost import forward_cost

        assert self.costs is not None, "preparing a run must set costs"
        return self.costs.forward(rows, None if network is None else partial(forward_cost, network, rows), taught)

    def remember(self, key: tuple[Hashable, ...], make: Callable[[], Kept]) -> Kept:
        """Return the object that an earlier run of the same user stored under ``key``; if missing, create it with ``make``."""
        return self.memory.remember(key, make)

    def tree_file(self, name: str) -> Path:
        """Return the path of the calibration ``name`` in ``assets/trees``."""
        return TREES / f"{name}.json"

    def using(self, **replacements: Any) -> Self:
        """Return a copy with other fields or methods, by name."""
        resources = copy.copy(self)
        for name, value in replacements.items():
            getattr(self, name)  # raises AttributeError for an unknown name
            setattr(resources, name, value)
        return resources


@dataclass
class TextResources(MethodResources):
    """Resources for a causal language model."""

    modality = "text"

    @abstractmethod
    def draft_model(self) -> DraftModel:
        """Return the draft model named by the user, or else the default for the target."""

    @abstractmethod
    def draft_models(self) -> dict[str, DraftModel]:
        """Return the draft models named by the user, separated by commas; keys are short names."""

    @abstractmethod
    def intermediate(self, kind: str) -> IntermediateModel:
        """Return an intermediate model: smaller than the target, larger than a drafter."""

    @abstractmethod
    def grouped(self, kind: str, group: int) -> GroupedModel:
        """Return the draft model ``kind`` with the attention of up to ``group`` layers in parallel."""

    @abstractmethod
    def cost_curve_of(self, draft: Target) -> CostCurve:
        """Return the cost of a pass of the model ``draft`` by number of nodes, comparable with :meth:`cost_curve`."""


@dataclass
class VisionLanguageResources(MethodResources):
    """Resources for a vision-language model."""

    modality = "vision_language"

    @abstractmethod
    def draft_model(self) -> DraftModel:
        """Return the language model that drafts from the text of the prompt."""


@dataclass
class ImageResources(MethodResources):
    """Resources for a model that generates images code by code."""

    modality = "image"

    @abstractmethod
    def neighbours(self) -> Tensor:
        """Return the nearest latent codes of every code, nearest first, int64 [code, rank]."""

    @abstractmethod
    def coarse(self) -> CoarsePartner:
        """Return the model that generates images on half the grid. Raises ModelUnavailable if there is none."""


@dataclass(frozen=True)
class Paper:
    """Publication that introduced a method."""

    title: str
    authors: str
    year: int
    arxiv: str = ""
    venue: str = ""


@dataclass(frozen=True)
class Exactness:
    """Guarantee of a method about the output.

    ``output``: "exact" (same distribution as the target's) or "relaxed". ``token_exact``: the output equals that of the
    autoregressive run with the same seed, at any temperature. ``exception``: (parameter, choice) with another guarantee: exact in
    distribution for a token-exact method, token-exact for any other.
    """

    output: str = "exact"
    token_exact: bool = False
    exception: tuple[str, str] | None = None

    def except_with(self, parameter: str, choice: str) -> Exactness:
        """Return this guarantee with an exception."""
        return replace(self, exception=(parameter, choice))

    @property
    def label(self) -> str:
        """Guarantee in a few words, without the exception."""
        if self.token_exact:
            return "exact, token for token"
        return "exact in distribution" if self.output == "exact" else self.output

    @property
    def exceptional(self) -> Exactness:
        """Guarantee with the choice of ``exception``."""
        return IN_DISTRIBUTION if self.token_exact else TOKEN_EXACT

    def __str__(self) -> str:
        if self.exception is None:
            return self.label
        strength = "in distribution" if self.token_exact else "token for token"
        return "{}; {} with {} “{}”".format(self.label, strength, *self.exception)


TOKEN_EXACT, IN_DISTRIBUTION, RELAXED = Exactness(token_exact=True), Exactness(), Exactness("relaxed")


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Texts of a method's card, from the table with the method's name in a TOML file.

    The file is ``cards.toml`` in the folder of a package, or a file beside a module; methods of one paper share the table
    ``paper``. ``look_at``: what to watch in a run. ``claim``: speed reported in the paper, with the model. ``differs``: why small
    models on a small machine give other results, with keys of ``assets/results.json`` in braces. ``bound``: bound of a relaxed
    method. ``needs``: requirements besides a drafter or a draft model. ``pair``: row in PAIRS.md, with a published target and
    drafter.
    """

    title: str
    summary: str
    look_at: str
    paper: Paper | None = None
    claim: str = ""
    differs: str = ""
    bound: str = ""
    needs: str = ""
    pair: str = ""


@dataclass(frozen=True, kw_only=True)
class Card(Generic[Parameters]):
    """Card of a method. As a decorator of ``compose(parameters, resources)``, a card registers the method.

    ``weights``: required weights, by name in the catalog. ``targets``: targets in the catalog that the method supports, the
    shipped target first; empty: all. ``needs_draft``: whether the app lets a user name a draft model. ``family``: key of
    ``FAMILIES``. ``published``: modalities without shipped heads, for which the user must name heads.
    ``warm_up(run, cancel, progress)``: function that prepares the drafter before a run; returns a warning or "".
    """

    name: str
    exactness: Exactness
    parameters: type[Parameters]
    modality: tuple[str, ...] = ("text",)
    weights: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    needs_draft: bool = False
    family: str = "other"
    published: tuple[str, ...] = ()
    warm_up: Callable[[Any, Any, Callable[[str, float | None], None]], str] | None = None

    def __call__(
        self, compose: Callable[[Parameters, Resources], parts.Composition]
    ) -> Callable[[Parameters, Resources], parts.Composition]:
        """Register ``compose``. Raises ValueError for a duplicate name or an unknown family."""
        if self.name in _METHODS or self.family not in FAMILIES:
            raise ValueError(f"the method name {self.name} is taken, or the family {self.family} is unknown")
        module = Path(inspect.getfile(compose))
        file = module.with_name("cards.toml") if module.stem == "__init__" else module.with_suffix(".toml")
        tables = tomllib.loads(file.read_text("utf-8"))
        texts = {"paper": tables.get("paper"), "differs": "", **tables[self.name]}
        texts |= {"paper": texts["paper"] and Paper(**texts["paper"]), "differs": filled(texts["differs"])}
        settings = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        _METHODS[self.name] = Method(**settings, **texts, compose=compose)
        return compose

    def runs_on(self, modality: str) -> bool:
        """Whether the method supports targets of this ``modality``, with shipped heads or heads that the user names."""
        return modality in (*self.modality, *self.published)

    @property
    def takes_draft(self) -> bool:
        """Whether a user may name a draft model or heads."""
        drafts_from_text = self.family in ("none", "memory")
        return not drafts_from_text or any(own.name == "drafter" for own in describe(self.parameters))


@dataclass(frozen=True, kw_only=True)
class Method(Texts, Card[Any]):
    """A registered method: card, texts and the ``compose`` function."""

    compose: Callable[[Any, Any], parts.Composition]

    def plain(self) -> dict[str, Any]:
        """Return name, title, summary, modalities and exactness as plain data, for JSON."""
        promise = self.exactness
        exception = list(promise.exception or ())
        return {
            **{name: getattr(self, name) for name in ("name", "title", "summary")},
            **{name: list(getattr(self, name)) for name in ("modality", "published")},
            "exactness": promise.output,
            "token_exact": promise.token_exact,
            "in_distribution": exception if promise.token_exact else [],
            "token_exact_with": [] if promise.token_exact else exception,
        }


_METHODS: dict[str, Method] = {}


def all_methods() -> dict[str, Method]:
    """Return every method by name. The first call imports the modules of this package, except ``parts``, which imports torch."""
    _load()
    return dict(_METHODS)


@cache
def _load() -> None:
    package = importlib.import_module("specviz.methods")
    for name in sorted(module.name for module in pkgutil.iter_modules(package.__path__)):
        if name != "parts":
            importlib.import_module(f"specviz.methods.{name}")


def families() -> dict[str, list[Method]]:
    """Return the methods by family title, in order of publication; empty families are left out."""
    entries = list(all_methods().values())
    # By arXiv number, which starts with year and month; without a number, December of the year.
    entries.sort(key=lambda entry: (paper := entry.paper) and (paper.arxiv or f"{paper.year % 100:02d}12") or "")
    grouped = {title: [entry for entry in entries if entry.family == key] for key, title in FAMILIES.items()}
    return {title: methods for title, methods in grouped.items() if methods}


def get(name: str) -> Method:
    """Return the method called ``name``. Raises BadInput for an unknown name."""
    known = all_methods()
    if not isinstance(name, str) or name not in known:
        raise BadInput(f"There is no method {shown(name)}; choose one of: {', '.join(sorted(known))}.")
    return known[name]
