"""Running the viewer's script under node, without a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from specviz.viewer import bundle
from tests.support.viewer.node import WRAP, Evaluate


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Evaluate:
    """``node(body, given)`` runs the body of a JavaScript function, with ``given`` at hand."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is not installed; it runs the viewer's script outside a browser")
    path: Path = tmp_path_factory.mktemp("viewer") / "viewer.js"
    path.write_text(bundle.script(), encoding="utf-8")

    def evaluate(body: str, given: Any = None) -> Any:
        code = WRAP.format(script=json.dumps(str(path)), body=body)
        done = subprocess.run(
            [program, "-e", code], input=json.dumps(given), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return evaluate
