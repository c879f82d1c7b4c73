"""Figures of a run for papers, slides and the page below the stage. Each is a pure function of a trace.

:func:`draft_tree` shows one step, the other figures a whole run. Notes of methods appear only on the stage, which ``Trace.show``
opens in a notebook. ``trace.export.graph`` returns the draft tree of a step as a networkx graph.
"""

from __future__ import annotations

from specviz.figures.draft_tree import draft_tree
from specviz.figures.explain import Term, explain
from specviz.figures.reliability import reliability
from specviz.figures.speed_explained import speed_explained
from specviz.figures.speed_table import speed_table
from specviz.figures.summaries import acceptance_by_depth, accepted_length, time_shares
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
