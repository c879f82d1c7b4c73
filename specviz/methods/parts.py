"""Building blocks of methods, in one namespace. Importing this module imports torch; ``registry.parts`` defers the import."""

# ruff: noqa: F401
from __future__ import annotations

from typing import Any

from specviz.acceptance.exact import Match, Rejection
from specviz.acceptance.relaxed import Limit, Relaxed
from specviz.drafting.memory.output_store import OutputStore
from specviz.drafting.memory.prompt_copy import PromptCopy
from specviz.drafting.memory.retrieval import Retrieval
from specviz.drafting.memory.suffix_guess import LengthRule
from specviz.drafting.runtimes.block_drafter import BlockDrafter
from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
from specviz.drafting.runtimes.fill_drafter import FillDrafter
from specviz.drafting.runtimes.guided_drafter import feature_drafter
from specviz.drafting.runtimes.language_model import DraftModel, LanguageModelDrafter, SmallModel
from specviz.drafting.runtimes.null import NullDrafter
from specviz.drafting.runtimes.visual_context import Layout, TextAlone, with_picture
from specviz.drafting.trees.best_first import BestFirst
from specviz.drafting.trees.block_chain import BlockChain
from specviz.drafting.trees.calibrated import CalibratedTree, load_all
from specviz.drafting.trees.depth_profile import DepthProfile, fastest_depth
from specviz.drafting.trees.dynamic import MIN_CONFIDENCE_TEMPERATURE, CurrentCosts, Dynamic, SpeedupPolicy, ahead_on
from specviz.drafting.trees.retrieved import ChainBuilder, Retrieved, RootOnly
from specviz.drafting.trees.sampled import Sampled
from specviz.drafting.trees.sampled_dynamic import SampledDynamicTree
from specviz.engine.cost import best_size
from specviz.engine.interfaces import (
    Acceptance,
    Composition,
    Context,
    Controller,
    Draft,
    Round,
    Session,
    SingleDrafter,
    Target,
    TargetPass,
    TreeBuilder,
    Verdict,
    single_drafter,
)
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree, TreeShape, best_ranks, chain, shape_from_counts


def chain_drafter(
    draft: DraftModel, builder: TreeBuilder[Any], acceptance: Acceptance, picture: Layout | None = None
) -> Composition:  # fmt: skip
    """Compose a method whose drafter is a language model. The model reads the text of the prompt without the ``picture``."""
    drafter: Any = LanguageModelDrafter(draft.open, draft.context_length)
    if picture is not None:
        drafter = TextAlone(drafter, picture)
    return single_drafter(drafter, builder, acceptance, (), draft.name, draft.warnings)
