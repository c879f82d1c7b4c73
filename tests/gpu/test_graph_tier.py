"""Every rule and family on a device: the graph tier writes what the eager tier writes there, and what this CPU writes."""

from functools import cache

import pytest

from specviz.methods.registry import all_methods
from tests.support.devices import CPU, CUDA, EMULATED, device_named
from tests.support.ladder import NUCLEUS, PICTURES, ROWS, Row, Way, baseline
from tests.support.worlds.image import World

BUDGET = 24
WORLDS = ("text", "whole", "vision", "hybrid", "pure", "delta")
CASES = {}
for _row in (Row("autoregressive", ways=(NUCLEUS,)), *ROWS):
    if _row.world in WORLDS and "int8" not in _row.values.values():  # packed for this CPU, which no emulation opens
        CASES.setdefault((_row.world, _row.method, *sorted(one for one in _row.values.values() if isinstance(one, str))), _row)
"""The first row of the ladder of each combination of a method's named choices in a world."""
EACH = [row for key, row in CASES.items() if row is CASES[next(other for other in CASES if other[:2] == key[:2])]]
"""One of each method in a world: what runs on an emulated device."""
FAMILIES = "autoregressive eagle3 gto eagle traversal medusa falcon deer easyspec polybasic reader hivis dream stree"
QUICK = [next(row for row in CASES.values() if row.method == method) for method in FAMILIES.split()]
"""One of each family of methods, in the fast lane on the emulated device."""
SINGLE = [row for row in QUICK if row.method in ("eagle3", "hivis")]
"""Those compared in single precision too, in the fast lane."""
IMAGE = [Row("autoregressive", world="image"), *PICTURES]


def is_own(row):
    """Whether the text is the target's own at any temperature; else it has its distribution, and the same draws give the same."""
    return any(way.warped != "greedy" for way in row.ways)


def ids(row, tier, device=CPU, dtype="float64", warped=""):
    """What a run on the device writes. A method with a memory runs as often as its row says."""
    way, memory, written = Way(tier, dtype, warped or warp_of(row)), {}, []
    expected = own_text(row, dtype, warped)
    for _ in range(row.runs):
        written = row.decode(row.open(way, device=device), way, expected, memory).ids
    return written


def warp_of(row):
    return "nucleus" if row.method in ("autoregressive", "eagle3") else "warm"


def own_text(row, dtype="float64", warped=""):
    """The target's own run on this CPU."""
    return baseline(row.world, Way("eager", dtype, warped or warp_of(row)), BUDGET)[0]


def picture(row, device, tier, guidance):
    """Codes of a whole tiny picture, of two guided rows or, with guidance 1, of one; and by step the drafted codes with their
    statuses."""
    run = World(guidance, device=device, tier=tier).draw(row.method, row.values)
    return run.ids, [[(node.token, node.status) for node in step.nodes] for step in run.steps]


def crossed(rows, emulated, quick):
    """Each row on a real device, in the lane ``gpu``, and some on an emulated one. On this CPU the ladder runs the graph tier."""
    real = [pytest.param(row, CUDA, id=f"{row}-{CUDA}", marks=pytest.mark.gpu) for row in rows]
    marks = [() if row in quick else pytest.mark.slow for row in emulated]
    return real + [
        pytest.param(row, EMULATED, id=f"{row}-{EMULATED}", marks=mark) for row, mark in zip(emulated, marks, strict=True)
    ]


def tiers(row, name, both):
    """Those that run there: both on a real device, while on the emulated one an eager pass is the same for many methods."""
    return ["eager", "graph"] if both or name == CUDA else ["graph"]


def test_every_method_has_a_case():
    assert {row.method for row in (*CASES.values(), *IMAGE)} == set(all_methods())


@pytest.mark.spread(3)
@pytest.mark.parametrize(("row", "name"), crossed(list(CASES.values()), EACH, QUICK))
def test_the_graph_tier_writes_the_eager_tiers_text_and_this_cpus(row, name):
    expected = on_this_cpu(str(row))
    with device_named(name) as device:
        for tier in tiers(row, name, row in QUICK):
            assert ids(row, tier, device) == expected
    assert not is_own(row) or expected == own_text(row)


@cache
def on_this_cpu(name):
    return next(ids(row, "eager") for row in CASES.values() if str(row) == name)


@pytest.mark.spread(1)
@pytest.mark.parametrize(("row", "name"), crossed([row for row in CASES.values() if is_own(row)], SINGLE, SINGLE))
def test_in_single_precision_the_greedy_text_is_this_cpus(row, name):
    with device_named(name) as device:
        found = ids(row, tiers(row, name, False)[-1], device, "float32", "greedy")
        assert found == own_text(row, "float32", "greedy")


@pytest.mark.spread(1)
@pytest.mark.parametrize(("row", "name"), crossed(IMAGE, IMAGE, IMAGE))
def test_a_picture_depends_neither_on_the_tier_nor_on_the_device(row, name):
    guidance = 1.0 if row.method in ("autoregressive", "eagle2") and "rule" not in row.values else 2.0
    expected = picture(row, CPU, "eager", guidance)
    with device_named(name) as device:
        assert World(guidance, device=device).target.tier == "graph", "what auto takes"
        for tier in tiers(row, name, row.method in ("autoregressive", "mulo_sd")):
            assert picture(row, device, tier, guidance) == expected
