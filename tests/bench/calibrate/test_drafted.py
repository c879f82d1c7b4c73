"""Calibration of trained drafters: accepted nodes as rank paths."""

from specviz.bench.calibrate.drafted import ranks
from specviz.trace.schema import Nanoseconds, Node, Step


def test_an_accepted_path_is_told_by_its_ranks():
    parents = [-1, 0, 0, 0, 1, 1, 2, 2, 2, 8]
    nodes = tuple(Node(parent, number, "x") for number, parent in enumerate(parents))
    step = Step(0, 5, nodes, (2, 8, 9), None, (2, 8, 9), ("x",) * 3, "greedy", Nanoseconds(1))
    assert ranks(step) == (1, 2, 0)
