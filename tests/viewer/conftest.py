"""Running the viewer's script under node, without a browser."""

import shutil

import pytest

from specviz.viewer import bundle
from tests.support.viewer.node import Node


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    """``node(body, given)`` runs the body of a JavaScript function, with ``given`` at hand."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is not installed; it runs the viewer's script outside a browser")
    path = tmp_path_factory.mktemp("viewer") / "viewer.js"
    path.write_text(bundle.script() + bundle.script("play") + bundle.script("field") + bundle.script("story"), encoding="utf-8")
    running = Node(program, path)
    yield running.evaluate
    running.close()
