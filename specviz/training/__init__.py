"""Training of the weights in assets/: ``train("small_draft", minutes=90)``. Listing recipes does not import torch."""

from __future__ import annotations

from specviz.training.registry import recipes, train

__all__ = ["recipes", "train"]
