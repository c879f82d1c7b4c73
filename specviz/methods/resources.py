"""Resources of a method: the target, and access to costly or shared objects, by the target's modality."""

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

    from specviz.drafting.runtimes.intermediate import IntermediateModel
    from specviz.drafting.runtimes.language_model import DraftModel
    from specviz.drafting.runtimes.visual_context import Layout
    from specviz.engine.cost import CostCurve, RunCosts
    from specviz.engine.interfaces import Target
    from specviz.engine.sampling import Warp
    from specviz.engine.tree import TreeShape
    from specviz.methods.easyspec.layer_parallel import GroupedModel
    from specviz.methods.mulo_sd.coarse_rows import CoarsePartner

Kept = TypeVar("Kept")

TREES = ASSETS / "trees"
PUBLISHED = TREES / "published.json"


def published_tree(name: str) -> TreeShape:
    """Return a fixed tree of ``assets/trees/published.json``, which states child counts level by level; 0 for a leaf."""
    from specviz.engine.tree import shape_from_counts

    return shape_from_counts(json.loads(PUBLISHED.read_text("utf-8"))[name]["counts"])


class UserMemory(Protocol):
    """Objects kept from earlier runs of the same user."""

    def remember(self, key: tuple[Hashable, ...], make: Callable[[], Any]) -> Any:
        """Return the object under ``key``, made by ``make`` if missing."""


@dataclass
class MethodResources(ABC):
    """Resources for every kind of target. ``prompt_key`` identifies the prompt, for stores that belong to one prompt.

    ``draft_name`` is the draft model the user named, if any. ``uses_shipped_weights`` is False if ``drafter_weights`` returns
    networks published by others, to which the shipped calibrations do not apply. ``guidance`` is (scale, empty prompt) for
    guidance with two rows: logits are u + scale (c - u). ``grid`` is (rows, columns) of a generated picture.
    ``picture`` is the layout of a picture in the prompt, None for a text prompt.
    """

    modality: ClassVar[str]
    target: Target
    warp: Warp
    prompt_key: str
    memory: UserMemory
    draft_name: str = ""
    uses_shipped_weights: bool = True
    guidance: tuple[float, tuple[int, ...]] | None = None
    grid: tuple[int, int] | None = None
    picture: Layout | None = None
    costs: RunCosts | None = None

    def cost_curve(self) -> CostCurve:
        """Return the current cost of a target pass by number of nodes, estimated from all passes so far; a new object if it
        changed."""
        assert self.costs is not None, "the preparation of a run gives the cost of its passes"
        return self.costs.curve()

    @abstractmethod
    def drafter_weights(self, kind: str) -> Any:
        """Return the network of this kind trained for the target ("eagle", "eagle3", "medusa", "falcon", "gto", "masked_lm",
        "deer" …), or the trigram model "ngrams". Raises ModelUnavailable if missing."""

    def forward_cost(self, network: Any, rows: int, taught: bool = True) -> float:
        """Return milliseconds of a forward of a drafter's ``network`` over ``rows`` nodes on this machine.

        The network is timed before its first run, unless it is None. With ``taught``, the cost is updated from the runs' draft
        times.
        """
        from specviz.drafting.networks.forward_cost import forward_cost

        assert self.costs is not None, "the preparation of a run gives the cost of its passes"
        return self.costs.forward(rows, None if network is None else partial(forward_cost, network, rows), taught)

    def remember(self, key: tuple[Hashable, ...], make: Callable[[], Kept]) -> Kept:
        """Return the object that an earlier run of the same user left under ``key``, or make and store it."""
        resource: Kept = self.memory.remember(key, make)
        return resource

    def tree_file(self, name: str) -> Path:
        """Return the path of the calibrated tree ``name``."""
        return TREES / f"{name}.json"

    def using(self, **replacements: Any) -> Self:
        """Return a copy with ``replacements`` of fields or methods by name, such as another memory or network."""
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
        """Return the draft language model: the one named by the user, or the target's default."""

    @abstractmethod
    def draft_models(self) -> dict[str, DraftModel]:
        """Return, by short name, the language models that the user named, separated by commas."""

    @abstractmethod
    def intermediate(self, kind: str) -> IntermediateModel:
        """Return a model between the target and a drafter in size."""

    @abstractmethod
    def grouped(self, kind: str, group: int) -> GroupedModel:
        """Return a draft model with the attention of up to ``group`` layers in parallel."""

    @abstractmethod
    def cost_curve_of(self, draft: Target) -> CostCurve:
        """Return the cost curve of passes of a draft model that scores trees, consistent with the target's."""


@dataclass
class VisionLanguageResources(MethodResources):
    """Resources for a model with a picture in its prompt."""

    modality = "vision_language"

    @abstractmethod
    def draft_model(self) -> DraftModel:
        """Return the language model that drafts from the text alone."""


@dataclass
class ImageResources(MethodResources):
    """Resources for a model that generates a picture code by code."""

    modality = "image"

    @abstractmethod
    def neighbours(self) -> Tensor:
        """Return every code's nearest latent codes, int64 [code, rank], nearest first."""

    @abstractmethod
    def coarse(self) -> CoarsePartner:
        """Return the model that generates the same picture on half the grid. Raises ModelUnavailable if missing."""
