"""Figures of a run for papers, slides and the page below the stage, each a pure function of its trace.

They show the draft tree of one step, or summarise the whole run. Only the stage draws a method's notes on a step;
``Trace.show`` shows it in a notebook. ``trace.export.graph`` returns a step's tree as a networkx graph.
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
