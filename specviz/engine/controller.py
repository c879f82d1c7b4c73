"""Controller of most methods: one drafter and one tree builder in every round."""

from __future__ import annotations

from typing import Generic, TypeVar

from specviz.engine.interfaces import Acceptance, Composition, Context, Draft, Drafter, Round, TargetPass, TreeBuilder

AnyDrafter = TypeVar("AnyDrafter", bound=Drafter)


class SingleDrafter(Generic[AnyDrafter]):
    """Drafts the same way each round."""

    def __init__(self, drafter: AnyDrafter, builder: TreeBuilder[AnyDrafter]) -> None:
        self.drafter = drafter
        self.builder = builder

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.drafter.begin(context, prefill)

    def draft(self, context: Context) -> Draft:
        return self.builder.build(self.drafter, context)

    def observe(self, finished: Round) -> None:
        self.drafter.observe(finished)

    def close(self) -> None:
        self.drafter.close()


def single_drafter(
    drafter: AnyDrafter, builder: TreeBuilder[AnyDrafter], acceptance: Acceptance, hidden_state_layers: tuple[int, ...] = (),
    draft_name: str = "", warnings: tuple[str, ...] = (),
) -> Composition:  # fmt: skip
    """Compose a method of one drafter, one tree builder and one acceptance rule."""
    return Composition(SingleDrafter(drafter, builder), acceptance, hidden_state_layers, draft_name, warnings)
