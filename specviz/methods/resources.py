"""Resources a method may ask for: the target, and ways to get what is costly or shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from specviz.errors import ModelUnavailable

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.drafters.intermediate import Middle
    from specviz.drafters.language_model import DraftModel
    from specviz.drafters.layer_groups import GroupedModel
    from specviz.drafters.visual_context import Layout
    from specviz.engine.cost import CostCurve
    from specviz.engine.interfaces import Target
    from specviz.engine.sampling import Warp
    from specviz.methods.mulo_sd.coarse_rows import CoarsePartner

Kept = TypeVar("Kept")

TREES = Path(__file__).resolve().parents[2] / "assets" / "trees"


def _no_heads(kind: str) -> Any:
    """What a target without drafting networks answers."""
    raise ModelUnavailable(f"There is no {kind} network for this target: choose a method that needs none.")


def _no_pictures() -> Any:
    """What a target that draws nothing answers."""
    raise ModelUnavailable("This method works on image targets: choose one, such as emoji-64.")


def _no_curve(draft: Target) -> Any:
    """What preparing answers that measures no draft models."""
    raise ModelUnavailable(f"What a pass of {draft.name} costs is not measured for this target: ask for a tree of given size.")


def _no_groups(kind: str, group: int) -> Any:
    """What a target without such draft models answers."""
    raise ModelUnavailable(f"There is no {kind} with layers side by side for this target: choose another draft model.")


@dataclass(frozen=True)
class MethodResources:
    """``recall(key, make)`` returns what an earlier run of the same user left under ``key``, or makes and leaves it.

    ``prompt_key`` tells prompts apart, for stores that must not outlive one. ``cost_curve()`` measures once per target, and
    ``curve_of(draft)`` does so for a draft model that scores trees.
    ``heads(kind)`` is the network of that kind trained for the target, ready to draft ("eagle", "eagle3", "medusa",
    "falcon", "gto", "masked_lm", "deer"), or "ngrams", which tells how well three tokens go together.
    ``picture`` says where a prompt's picture stands, None where the prompt is text. ``guidance`` is
    (scale, prompt of the row that says nothing) where two rows are guided: logits are u + scale (c - u). ``grid`` is (rows,
    columns) of a picture that is drawn; ``neighbours()`` is int64 [code, rank], every code's nearest latent codes, nearest first;
    ``coarse()`` is the model that draws the same picture on half the grid.
    ``middle(kind)`` is a model that stands between the target and a drafter, ``grouped(kind, group)`` a
    draft model up to ``group`` of whose layers attend side by side. ``draft_name`` is the draft model the user named, if any.
    ``own_heads`` is False where ``heads`` gives networks that others published: what was measured on ours says nothing there.
    """

    target: Target
    warp: Warp
    prompt_key: str
    recall: Callable[[tuple[Any, ...], Callable[[], Any]], Any]
    cost_curve: Callable[[], CostCurve]
    draft_model: Callable[[], DraftModel]
    heads: Callable[[str], Any] = _no_heads
    picture: Layout | None = None
    guidance: tuple[float, tuple[int, ...]] | None = None
    grid: tuple[int, int] | None = None
    neighbours: Callable[[], Tensor] = _no_pictures
    coarse: Callable[[], CoarsePartner] = _no_pictures
    middle: Callable[[str], Middle] = _no_heads
    grouped: Callable[[str, int], GroupedModel] = _no_groups
    draft_name: str = ""
    own_heads: bool = True
    curve_of: Callable[[Target], CostCurve] = _no_curve

    def tree_file(self, name: str) -> Path:
        """Where the calibrated tree called ``name`` lives."""
        return TREES / f"{name}.json"
