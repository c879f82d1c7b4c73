"""The recorded pictures of ever looser acceptance."""

import base64
import io
import json

import pytest
from PIL import Image

from specviz.bench.relaxation import FILE, PROMPT, SETTINGS, TARGET


def test_the_recorded_pictures_are_those_of_the_settings():
    found = json.loads(FILE.read_text("utf-8"))
    expected = [(method, value) for method, (_, _, values, _) in SETTINGS.items() for value in values]
    assert [(row["method"], row["value"]) for row in found["rows"]] == expected
    assert (found["prompt"], found["target"]) == (PROMPT, TARGET)
    for row in found["rows"]:
        assert len(row["cells"]) == found["columns"] ** 2
        assert sum(row["cells"]) / len(row["cells"]) == pytest.approx(100 * row["distance"], abs=0.6)
        assert Image.open(io.BytesIO(base64.b64decode(row["picture"]))).size == (64, 64)
    loosest = {row["method"]: row["tau"] for row in found["rows"]}
    strictest = {row["method"]: row["tau"] for row in reversed(found["rows"])}
    assert all(loosest[method] > strictest[method] for method in SETTINGS)
