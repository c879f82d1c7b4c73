"""Resources a method may ask for: the target, and ways to get what is costly or shared, by what the target works on."""

from __future__ import annotations

import copy
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
    from specviz.methods.easyspec.drafter import GroupedModel
    from specviz.methods.mulo_sd.coarse_rows import CoarsePartner

Kept = TypeVar("Kept")

TREES = ASSETS / "trees"


class UserMemory(Protocol):
    """What earlier runs of the same user left."""

    def remember(self, key: tuple[Hashable, ...], make: Callable[[], Any]) -> Any:
        """What stands under ``key``, made now if nothing does."""


@dataclass
class MethodResources(ABC):
    """What every target has. ``prompt_key`` tells prompts apart, for stores that must not outlive one.

    ``draft_name`` is the draft model the user named, if any. ``uses_shipped_weights`` is False where ``drafter_weights`` gives
    networks that others published: what was measured on ours says nothing there. ``guidance`` is (scale, prompt of the row
    that says nothing) where two rows are guided: logits are u + scale (c - u). ``grid`` is (rows, columns) of a picture that
    is drawn.
    ``picture`` says where a prompt's picture stands, None where the prompt is text.
    """

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
        """What a pass of the target costs here by its nodes, as all passes so far say: another curve where that has changed."""
        assert self.costs is not None, "the preparation of a run gives the cost of its passes"
        return self.costs.curve()

    @abstractmethod
    def drafter_weights(self, kind: str) -> Any:
        """The network of that kind trained for the target, ready to draft ("eagle", "eagle3", "medusa", "falcon", "gto",
        "masked_lm", "deer" …), or "ngrams", which tells how well three tokens go together. Raises ModelUnavailable where
        there is none."""

    def forward_cost(self, network: Any, rows: int, taught: bool = True) -> float:
        """Milliseconds of a forward of a drafter's ``network`` over ``rows`` nodes here: timed before its first run, unless it is
        None, and where it is ``taught`` learned from the draft times of the runs."""
        from specviz.drafting.networks.forward_cost import forward_cost

        assert self.costs is not None, "the preparation of a run gives the cost of its passes"
        return self.costs.forward(rows, None if network is None else partial(forward_cost, network, rows), taught)

    def remember(self, key: tuple[Hashable, ...], make: Callable[[], Kept]) -> Kept:
        """What an earlier run of the same user left under ``key``, or what is made and left there now."""
        resource: Kept = self.memory.remember(key, make)
        return resource

    def tree_file(self, name: str) -> Path:
        """Where the calibrated tree called ``name`` lives."""
        return TREES / f"{name}.json"

    def using(self, **replacements: Any) -> Self:
        """A copy with ``replacements`` in place of the fields and methods so named: another memory, a network of one's own."""
        resources = copy.copy(self)
        for name, value in replacements.items():
            getattr(self, name)  # an AttributeError for a name that nobody would ask for
            setattr(resources, name, value)
        return resources


@dataclass
class TextResources(MethodResources):
    """Of a causal language model."""

    modality: ClassVar[str] = "text"

    @abstractmethod
    def draft_model(self) -> DraftModel:
        """The language model that drafts: the one named by the user, or the target's own."""

    @abstractmethod
    def draft_models(self) -> dict[str, DraftModel]:
        """The language models that the user named, with commas between them, by short names."""

    @abstractmethod
    def intermediate(self, kind: str) -> IntermediateModel:
        """A model that stands between the target and a drafter."""

    @abstractmethod
    def grouped(self, kind: str, group: int) -> GroupedModel:
        """A draft model up to ``group`` of whose layers attend side by side."""

    @abstractmethod
    def cost_curve_of(self, draft: Target) -> CostCurve:
        """What a pass of a draft model that scores trees costs here, beside one of the target."""


@dataclass
class VisionLanguageResources(MethodResources):
    """Of a model that is asked about a picture."""

    modality: ClassVar[str] = "vision_language"

    @abstractmethod
    def draft_model(self) -> DraftModel:
        """The language model that drafts from the text alone."""


@dataclass
class ImageResources(MethodResources):
    """Of a model that draws a picture code by code."""

    modality: ClassVar[str] = "image"

    @abstractmethod
    def neighbours(self) -> Tensor:
        """int64 [code, rank]: every code's nearest latent codes, nearest first."""

    @abstractmethod
    def coarse(self) -> CoarsePartner:
        """The model that draws the same picture on half the grid. Raises ModelUnavailable where there is none."""
