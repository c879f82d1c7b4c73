"""The viewer's script under node: one process a session, and a world of its own for every piece of script that a test sends."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

Evaluate = Callable[..., Any]

SERVE = """
const vm = require("vm");
const viewer = new vm.Script(require("fs").readFileSync(process.argv[1], "utf8"));
const names = Object.getOwnPropertyNames(globalThis).filter((name) => !vm.runInNewContext(`"${name}" in globalThis`));
const open = () => {
  const world = vm.createContext({ console: { log() {}, warn() {}, error() {}, info() {} } });
  for (const name of names) if (!(name in world)) world[name] = globalThis[name];
  viewer.runInContext(world);
  return world;
};
const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\\n");
process.on("uncaughtException", (error) => say({ error: String(error.stack) }));
require("readline").createInterface({ input: process.stdin }).on("line", async (line) => {
  const { code, given } = JSON.parse(line);
  try {
    const world = open();
    world.handed = given;
    say({ found: await vm.runInContext(code, world) });
  } catch (error) {
    say({ error: String(error.stack) });
  }
});
"""
WRAP = """
const {{ modules }} = SpecvizViewer;
const [format, noteRegistry, labels] = ["format", "noteRegistry", "labels"].map((name) => modules[`kit/${{name}}`]);
const [layout, rules] = ["layout", "rules"].map((name) => modules[`tree/${{name}}`]);
const {{ parseStep, findNode, sentChildren }} = modules["run/decode"];
const {{ Feed }} = modules["run/feed"];
const {{ Player }} = modules["run/player"];
const given = JSON.parse(handed);
const room = (more) => ({{ width: 900, height: 360, measure: (text, size) => text.length * size * 0.6, ...more }});
const feed = (options) => new Feed({{ onReset() {{}}, onChange() {{}}, ...options }});
(async () => {{ {body} }})().then((found) => JSON.stringify(found));
"""


class Node:
    """A node process that runs the bodies of JavaScript functions, one after the other."""

    def __init__(self, program: str, script: Path) -> None:
        self.process = subprocess.Popen(
            [program, "-e", SERVE, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def evaluate(self, body: str, given: Any = None) -> Any:
        """What the body returns, with ``given`` at hand."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"code": WRAP.format(body=body), "given": json.dumps(given)}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return json.loads(answer["found"])

    def close(self) -> None:
        self.process.communicate()
