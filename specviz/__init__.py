"""specviz runs speculative decoding live and draws what happens.

``specviz.run(method=..., prompt=...)`` decodes and returns a trace, which ``trace.show()`` displays in a notebook;
``specviz.record(model)`` traces transformers' own ``generate``; ``specviz.figures`` draws traces for papers and slides.
All three are imported on first use, so that listing methods or reading a trace needs no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from specviz.version import __version__ as __version__


def __getattr__(name: str) -> Any:
    if name == "run":
        return importlib.import_module("specviz.pipeline.runner").run
    if name == "record":
        return importlib.import_module("specviz.interop.transformers_recorder").record
    if name == "figures":
        return importlib.import_module("specviz.figures")
    raise AttributeError(f"module 'specviz' has no attribute {name!r}")
