"""Start the app: read the environment, build the page, launch. Variables are listed in specviz/ui/settings.py."""

from __future__ import annotations

import importlib
import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ.setdefault("GRADIO_SSR_MODE", "false")
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000")  # else pandas sums up all events after each
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

if os.environ.get("SPACES_ZERO_GPU"):
    importlib.import_module("spaces")  # has to come before torch

from specviz.ui import stubs

with stubs.unwritten():
    from specviz.ui import page, settings, shared

running = shared.make(settings.read())
demo, options = page.build(running), page.launch_options(running)

if __name__ == "__main__":
    demo.launch(**options)
