"""No draft at all: the root alone, which makes a step an ordinary autoregressive one."""

from __future__ import annotations

import torch

from specviz.engine.interfaces import Context, Draft, Drafter
from specviz.engine.tree import DraftTree, chain


class RootOnly:
    """A tree of one node."""

    def grow(self, drafter: Drafter, context: Context) -> Draft:
        return Draft(DraftTree(chain(0), torch.tensor([context.ids[-1]], device=context.device)))
