"""A run of the suite shared among machines leaves no test out."""

import re
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[1]


def test_the_workflow_runs_every_part():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    (listed,), (parts,) = re.findall(r"part: \[(.+)\]", workflow), re.findall(r"--shard .+/(\d+)", workflow)
    assert [int(part) for part in listed.split(",")] == list(range(1, int(parts) + 1))


def test_parts_share_out_the_tests(pytestconfig):
    """Cases of a function stay together."""
    own = next(one for one in pytestconfig.pluginmanager.get_plugins() if hasattr(one, "model_trouble"))
    ids = [f"tests/test_{letter}.py::test_{number}[{case}]" for letter in "abc" for number in range(3) for case in "xy"]

    def kept(part):
        items = [SimpleNamespace(nodeid=one, path=one, get_closest_marker=lambda name: None) for one in ids]
        own.pytest_collection_modifyitems(SimpleNamespace(getoption=lambda name: part), items)
        return [item.nodeid for item in items]

    parts = [kept(f"{part}/4") for part in range(1, 5)]
    assert all(parts) and sorted(sum(parts, [])) == sorted(ids) == sorted(kept(""))
    assert not {one.split("[")[0] for one in parts[0]} & {one.split("[")[0] for one in parts[1]}
