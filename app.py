"""Start the app: read the environment, build the page, launch. Variables are listed in specviz/ui/settings.py."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ.setdefault("GRADIO_SSR_MODE", "false")
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000")  # else pandas aggregates all events after each one
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

if sys.platform == "linux" and "MALLOC_ARENA_MAX" not in os.environ:
    # glibc gives each thread its own arena and seldom reclaims it: a class of thirty then takes a third more memory.
    limit = getattr(ctypes.CDLL(None), "mallopt", None)  # not in every C library
    if limit is not None:
        limit(-8, 2)  # M_ARENA_MAX

if os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true"):
    importlib.import_module("spaces")  # has to come before torch

from specviz.ui import before_gradio

before_gradio.claim()
with before_gradio.without_gradio_stubs(), before_gradio.without_proxies():
    from specviz.ui import app_state, page, settings

if __name__ == "__main__" and sys.argv[1:]:
    print("app.py takes no arguments: set variables, as in `GRADIO_SERVER_PORT=8080 python app.py`.", file=sys.stderr)
    raise SystemExit(settings.MENDABLE)
with settings.explained():
    running = app_state.make(settings.check(settings.read()))
    demo, options = page.build(running), page.launch_options(running)
    if __name__ == "__main__":
        settings.launch(demo, options)
