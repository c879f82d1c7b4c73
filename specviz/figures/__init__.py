"""Figures of a run for papers, slides and the fold under the stage, each a pure function of its trace.

The draft tree of one step, and summaries of the whole run. A method's notes on a step are drawn by the stage alone:
``Trace.show`` shows the stage in a notebook. A step's tree as a networkx graph is ``trace.export.graph``.
"""

from __future__ import annotations

from specviz.figures.acceptance_by_depth import acceptance_by_depth
from specviz.figures.accepted_length import accepted_length
from specviz.figures.draft_tree import draft_tree
from specviz.figures.explain import Term, explain
from specviz.figures.reliability import reliability
from specviz.figures.speed_explained import speed_explained
from specviz.figures.speed_table import speed_table
from specviz.figures.time_shares import time_shares
from specviz.figures.unfinished import unfinished

__all__ = [
    "Term",
    "acceptance_by_depth",
    "accepted_length",
    "draft_tree",
    "explain",
    "reliability",
    "speed_explained",
    "speed_table",
    "time_shares",
    "unfinished",
]
