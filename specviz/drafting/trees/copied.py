"""Chain builder for copied continuations."""

from __future__ import annotations

from specviz.drafting.memory.prompt_copy import PromptCopy
from specviz.engine.interfaces import Context, Draft
from specviz.engine.tree import DraftTree


class Copied:
    """Tree builder that drafts the continuation as a chain, truncated to the remaining room."""

    def build(self, drafter: PromptCopy, context: Context) -> Draft:
        tokens, notes = drafter.continuation(context)
        tokens = list(tokens)[: max(0, context.max_depth - 1)]
        tree = DraftTree.of([context.ids[-1], *tokens], range(-1, len(tokens)), context.device)
        return Draft(tree, confidence=(None,) * len(tree), calls=1 if tokens else 0, notes=notes)
