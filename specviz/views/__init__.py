"""Pictures of a run, each a pure function of its trace: Plotly figures, a networkx graph, and HTML without scripts."""

from __future__ import annotations

from specviz.views.acceptance_by_depth import acceptance_by_depth
from specviz.views.accepted_length import accepted_length
from specviz.views.arms import arms
from specviz.views.belts import belts
from specviz.views.blocks import blocks
from specviz.views.coarse import coarse
from specviz.views.copy import copy
from specviz.views.denoised import denoised
from specviz.views.draft_tree import draft_tree
from specviz.views.drawn import drawn
from specviz.views.entropy_map import entropy_map
from specviz.views.explain import Term, explain
from specviz.views.growth import growth
from specviz.views.heads import heads
from specviz.views.islands import islands
from specviz.views.last_state import last_state
from specviz.views.latency_lanes import latency_lanes
from specviz.views.lattice import lattice
from specviz.views.layers import layers
from specviz.views.mass import mass
from specviz.views.merged_tree import merged_tree
from specviz.views.ngram_rows import ngram_rows
from specviz.views.output_strip import output_strip
from specviz.views.overlap import overlap
from specviz.views.picture import picture
from specviz.views.relaxed import relaxed
from specviz.views.reliability import reliability
from specviz.views.residuals import residuals
from specviz.views.reward import reward
from specviz.views.rows import rows
from specviz.views.speed_explained import speed_explained
from specviz.views.speed_table import speed_table
from specviz.views.ssm_mask import ssm_mask
from specviz.views.successors import successors
from specviz.views.suffix import suffix
from specviz.views.time_shares import time_shares
from specviz.views.traversal import traversal
from specviz.views.tree_graph import tree_graph
from specviz.views.typical import typical
from specviz.views.unfinished import unfinished
from specviz.views.visual_tokens import visual_tokens
from specviz.views.window import window

NOTES = {
    "copy": copy,
    "successors": successors,
    "ngram_rows": ngram_rows,
    "overlap": overlap,
    "growth": growth,
    "mass": mass,
    "traversal": traversal,
    "reward": reward,
    "blocks": blocks,
    "heads": heads,
    "typical": typical,
    "suffix": suffix,
    "merged": merged_tree,
    "rows": rows,
    "denoised": denoised,
    "lattice": lattice,
    "picture": picture,
    "visual_tokens": visual_tokens,
    "entropy_map": entropy_map,
    "residuals": residuals,
    "ssm_mask": ssm_mask,
    "relaxed": relaxed,
    "islands": islands,
    "coarse": coarse,
    "window": window,
    "canvas": drawn,
    "last_state": last_state,
    "arms": arms,
    "belts": belts,
    "layers": layers,
}
"""Note type -> the view of that note, called with a trace, the step's index and a theme."""

__all__ = [
    "NOTES",
    "Term",
    "acceptance_by_depth",
    "accepted_length",
    "arms",
    "belts",
    "blocks",
    "coarse",
    "copy",
    "denoised",
    "draft_tree",
    "drawn",
    "entropy_map",
    "explain",
    "growth",
    "heads",
    "islands",
    "last_state",
    "latency_lanes",
    "lattice",
    "layers",
    "mass",
    "merged_tree",
    "ngram_rows",
    "output_strip",
    "overlap",
    "picture",
    "relaxed",
    "reliability",
    "residuals",
    "reward",
    "rows",
    "speed_explained",
    "speed_table",
    "ssm_mask",
    "successors",
    "suffix",
    "time_shares",
    "traversal",
    "tree_graph",
    "typical",
    "unfinished",
    "visual_tokens",
    "window",
]
