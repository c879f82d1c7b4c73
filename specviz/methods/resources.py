"""Resources that a method is composed from: target, weights, costs and memory, by modality of the target."""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from specviz.paths import ASSETS

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.drafting.runtimes.language_model import DraftModel
    from specviz.drafting.runtimes.visual_context import Layout
    from specviz.engine.cost import CostCurve, RunCosts
    from specviz.engine.interfaces import Target
    from specviz.engine.sampling import Warp
    from specviz.engine.tree import TreeShape
    from specviz.methods.easyspec.layer_parallel import GroupedModel
    from specviz.methods.mulo_sd.coarse_rows import CoarsePartner
    from specviz.methods.polybasic.intermediate import IntermediateModel

Kept = TypeVar("Kept")

TREES = ASSETS / "trees"
PUBLISHED = TREES / "published.json"


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
