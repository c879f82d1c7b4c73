"""The page on a free port of this machine, without a browser."""

from __future__ import annotations

from typing import Any

import gradio as gr

from specviz.ui import page
from specviz.ui.app_state import AppState


def served(shared: AppState) -> tuple[gr.Blocks, str]:
    """The page, running on a free port of this machine."""
    built = page.build(shared)
    options: dict[str, Any] = {**page.launch_options(shared), "prevent_thread_lock": True, "quiet": True}
    _, url, _ = built.launch(**{**options, "server_name": "127.0.0.1"})
    return built, url
