"""The Image tab: a prompt, a target and a method; the picture grows beside its tree and its codes."""

from __future__ import annotations

from specviz.ui.tabs.run_tab import IDEA, RunTab


class ImageTab(RunTab):
    """Words in, a picture out."""

    modality, prefix, default_method = "image", "sp-image", "mulo_sd"
    verb, ask = ("Draw live", "Drawing"), "What to draw"
    idea = IDEA.replace("a tree of tokens", "picture codes").replace("checks it", "checks them")
