"""Empty draft: only the root, for an ordinary autoregressive step."""

from __future__ import annotations

from specviz.engine.interfaces import Context, Draft, Drafter
from specviz.engine.tree import DraftTree


class RootOnly:
    """Tree builder of a single node."""

    def build(self, drafter: Drafter, context: Context) -> Draft:
        return Draft(DraftTree.of([context.ids[-1]], [-1], context.device))
