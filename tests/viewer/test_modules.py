"""ES modules made one classic script: their order, their privacy, and what is refused; and that ours meet each other."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from specviz.viewer import bundle, modules

TESTS = Path(__file__).parents[1]
FILES = {path.relative_to(bundle.HERE).with_suffix("").as_posix(): path for path in bundle.SOURCES}


def sources():
    texts = {name: path.read_text(encoding="utf-8") for name, path in FILES.items()}
    return bundle._made() | texts


def test_modules_run_once_in_the_order_of_their_imports_and_keep_their_names_private():
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed; it runs the script")
    made = modules.ordered(
        {
            "a/last": 'import * as middle from "../b/middle.js";\nimport { own as other,\n  Kind } from "../first.js";\n\n'
            "const own = 3;\nlog.push([own, other(), middle.twice, new Kind().name]);\n",
            "b/middle": 'import { own } from "../first.js";\nexport const twice = 2 * own();\n',
            "first": 'log.push("first");\nexport function own() { return 1; }\nexport class Kind { name = "kind"; }\n',
            "alone": 'import * as first from "./first.js";\nlog.push(Object.keys(first));\n',
        }
    )
    assert [one.name for one in made] == ["first", "b/middle", "a/last", "alone"]
    script = f'"use strict";\nconst log = [];\n{modules.classic(made)}console.log(JSON.stringify(log));\n'
    done = subprocess.run([node, "-e", script], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == ["first", [3, 1, 2, "kind"], ["own", "Kind"]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"a": 'import * as d3 from "d3";\n'}, "not supported"),
        ({"a": "export default 3;\n"}, "a.js: this form of import or export is not supported: export default 3;"),
        ({"a": "export let count = 0;\n"}, "not supported"),
        ({"a": "const b = 1;\nexport { b };\n"}, "not supported"),
        ({"a": 'import b from "./b.js";\n', "b": ""}, "not supported"),
    ],
)
def test_what_cannot_be_put_in_order_is_refused(wrong, message):
    with pytest.raises(modules.BadModule, match=message):
        modules.ordered(wrong)


def test_circular_and_missing_imports_are_refused():
    circle = {name: f'import * as other from "./{other}.js";\n' for name, other in ("ab", "bc", "cb")}
    with pytest.raises(RecursionError):
        modules.ordered(circle)
    with pytest.raises(KeyError):
        modules.ordered({"a": circle["a"]})


def test_every_member_asked_of_a_namespace_is_exported():
    parsed = {one.name: one for one in modules.ordered(sources())}
    asked = 0
    for one in parsed.values():
        for line in one.imports:
            if not line.namespace:
                continue
            members = re.findall(rf"(?<![\w.$])(?:\.\.\.)?{line.namespace}\s*\.(\w+)", one.body)
            missing = set(members) - set(parsed[line.module].exports)
            assert not missing, f"{one.name}.js asks {line.module}.js for {missing}"
            asked += len(members)
    assert asked > 1000


def test_every_module_is_reached_and_every_export_used():
    """By another module or by a test; notes register themselves, and the page starts at ``stage/mount``."""
    parsed = modules.ordered(sources())
    tests = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py"))
    imported = {line.module for one in parsed for line in one.imports}
    for one in parsed:
        assert one.name in imported or one.name.startswith("notes/") or one.name.endswith("/mount"), (
            f"nothing imports {one.name}.js"
        )
        for export in one.exports:
            assert _used(one.name, export, parsed) or re.search(rf"\b{export}\b", tests), (
                f"nothing uses {export} of {one.name}.js"
            )


def _used(name, export, parsed):
    for one in parsed:
        for line in one.imports:
            if line.module != name:
                continue
            if any(export == there for there, _ in line.names):
                return True
            if line.namespace and re.search(rf"(?<![\w$]){line.namespace}\s*\.{export}\b", one.body):
                return True
    return False
