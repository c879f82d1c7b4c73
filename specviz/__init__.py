"""specviz runs speculative decoding live and draws what happens.

``specviz.run(method=..., prompt=...)`` decodes and returns a trace, whose ``show`` puts it on the stage in a notebook;
``specviz.record(model)`` makes traces of transformers' own ``generate``; ``specviz.figures`` draws them for papers and slides.
All are imported when first used, so that listing methods or reading a trace needs no torch.
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
