"""A report on a drafter as an inspection gives it, without a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import tensor

from specviz.figures.drafter_readings import Lens
from specviz.inspection.diagnosis import Comparison, Diagnosis
from specviz.inspection.forced import TeacherForcedStats
from specviz.inspection.report import Report


def report(name: str = "eagle3", target: str = "T") -> Report:
    """A head with a norm too many: one other reading is clearly better."""
    loaded = TeacherForcedStats(2, [tensor([2, 1, 0, 0])], overlap=[0.4], guesses=[(0.9, True), (0.3, False)], known=4)
    right = TeacherForcedStats(2, [tensor([2, 2, 2, 1])], overlap=[0.8], guesses=[(0.9, True)], known=4)
    other: Any = SimpleNamespace(name="taps one <b>earlier", blame="its taps are counted otherwise", reading=None)
    better = Comparison(other, right, 1.5, 0.25, 9.0)
    summary = [f"{name} on {target}", "  5.1 M parameters", "  conventions: plain residual"]
    return Report(name, target, "", {}, {}, summary, Diagnosis(loaded, [[better]], [better]), [Lens(2, 0.5, 1.0, True)])
