"""The viewer's script under node: what every test's own piece of script finds around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Evaluate = Callable[..., Any]

WRAP = """
require({script});
const {{ modules }} = SpecvizViewer;
const [format, noteRegistry, labels] = ["format", "noteRegistry", "labels"].map((name) => modules[`kit/${{name}}`]);
const [layout, rules] = ["layout", "rules"].map((name) => modules[`tree/${{name}}`]);
const {{ parseStep, findNode, sentChildren }} = modules["run/parseStep"];
const {{ Feed }} = modules["run/feed"];
const {{ Player }} = modules["run/player"];
const given = JSON.parse(require("fs").readFileSync(0, "utf8"));
const room = (more) => ({{ width: 900, height: 360, measure: (text, size) => text.length * size * 0.6, ...more }});
const feed = (options) => new Feed({{ onReset() {{}}, onChange() {{}}, ...options }});
(async () => {{ {body} }})().then((found) => console.log(JSON.stringify(found)));
"""
