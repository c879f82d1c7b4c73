"""Dynamic Depth Decoding (Brown et al. 2409.00142): an EAGLE-2 tree that stops growing when the beam holds little probability.

The paper tests H, the log of the sum of the beam's path probabilities. A tree of at most 11 levels stops at level 5, 7 or 9 if
H < -0.3. This threshold suits the published drafters. For the shipped drafter, the threshold follows from recorded rounds and
from the cost of a drafter forward on this machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from specviz.errors import BadInput
from specviz.methods.eagle2 import NODES, WIDTH, tree_costs
from specviz.methods.registry import TOKEN_EXACT, Card, MethodResources, choice, number, parts
from specviz.trace.notes.drafts import BeamMassNote
from specviz.trace.schema import Note

PUBLISHED_LEVELS = (5, 7, 9)
PUBLISHED_THRESHOLD = -0.3
CANDIDATES = tuple(-place / 20 for place in range(120, 0, -1))
"""Candidate thresholds: -6 to -0.05."""


def log_mass(values: Sequence[float]) -> float:
    """Return log(sum(exp(``values``))), the log probability mass of a beam with these log path probabilities."""
    most = max(values)
    return most + math.log(math.fsum(math.exp(value - most) for value in values))


@dataclass(frozen=True)
class BeamMass:
    """Stop rule: a tree stops at a tested level if the log mass of the beam is below ``threshold``.

    ``levels``: levels to test; empty: all. ``below`` [level]: fraction of the calibration rounds with a beam below the threshold.
    ``forward``: cost of a drafter forward in one-token target passes; None if the threshold does not depend on costs.
    """

    threshold: float
    levels: tuple[int, ...] = PUBLISHED_LEVELS
    below: tuple[float, ...] = ()
    forward: float | None = None

    def tests(self, level: int) -> bool:
        return not self.levels or level in self.levels

    def met(self, beams: Sequence[Sequence[float]]) -> bool:
        return self.tests(len(beams)) and log_mass(beams[-1]) < self.threshold

    def stop_note(self, beams: Sequence[Sequence[float]], stopped: bool, limit: int) -> Note:
        # At the last level there is nothing left to stop.
        tested = [level for level in range(1, len(beams) + 1) if level < limit and self.tests(level)]
        return BeamMassNote(
            mass=[log_mass(values) for values in beams],
            tested=tested,
            threshold=self.threshold,
            stopped=len(beams) if stopped else None,
            limit=limit,
            below=self.below,
            forward=self.forward,
        ).to_note()


@dataclass(frozen=True)
class CalibratedDepth:
    """Greedy rounds of ``drafter`` on ``target`` without a threshold.

    ``rounds``: each round's number of accepted tokens, then the log mass of the beam at each level. ``nodes``: mean number of
    nodes per tree. ``source``: description of the calibration.
    """

    rounds: tuple[tuple[float, ...], ...]
    nodes: float
    drafter: str
    target: str
    source: str = ""

    def brings(
        self, threshold: float, depth: int, levels: Sequence[int] = (), nodes: int = 0, ahead: int = 1
    ) -> tuple[float, float]:  # fmt: skip
        """Return the tokens per round, bonus included, and the drafter forwards per round that ``threshold`` would have given.

        ``depth`` and ``nodes``: maximum size of a tree; 0 nodes: as calibrated. ``levels``: levels to test; empty: all.
        ``ahead``: number of levels drafted between tests. Tokens accepted below the level of the stop count as lost.
        """
        tokens = forwards = 0.0
        for accepted, *mass in self.rounds:
            deepest = min(depth, len(mass))
            tested = (level for level in levels or range(1, deepest) if level < deepest)
            end = next((level for level in tested if mass[level - 1] < threshold), deepest)
            tokens += 1 + min(accepted, end, nodes or end)
            forwards += min(deepest, ahead * math.ceil(end / ahead))
        return tokens / len(self.rounds), forwards / len(self.rounds)

    def threshold_that_pays(
        self, policy: parts.SpeedupPolicy, depth: int, levels: Sequence[int] = (), nodes: int = 0, ahead: int = 1
    ) -> float:  # fmt: skip
        """Return the threshold with the most tokens per unit of time on this machine; ties go to the highest threshold.

        For ``depth``, ``levels``, ``nodes`` and ``ahead`` see :meth:`brings`.
        """
        verified, best = policy.cost[min(nodes or round(self.nodes), len(policy.cost) - 1)], (0.0, 0.0)
        for threshold in CANDIDATES:
            tokens, forwards = self.brings(threshold, depth, levels, nodes, ahead)
            best = max(best, (float(tokens / (verified + forwards * policy.forward)), threshold))
        return best[1]

    def below(self, threshold: float) -> tuple[float, ...]:
        """Return the fraction of rounds with a beam below ``threshold``, by level."""
        deepest = max(map(len, self.rounds))
        columns = ([one[level] for one in self.rounds if len(one) > level] for level in range(1, deepest))
        return tuple(round(sum(mass < threshold for mass in column) / len(column), 3) for column in columns)

    def save(self, path: Path) -> None:
        """Save as JSON, one round per line."""
        rounds = [[round(number, 3) for number in one] for one in self.rounds]
        fields = {**asdict(self), "nodes": round(self.nodes, 2), "rounds": rounds}
        path.write_text(json.dumps(fields).replace("], ", "],\n") + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> CalibratedDepth:
        """Load from JSON. Raises BadInput if the file is missing or holds no depth calibration."""
        try:
            found = msgspec.json.decode(path.read_bytes(), type=CalibratedDepth)
            if min(map(len, found.rounds), default=0) < 2:
                raise ValueError("no rounds")
            return found
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{path.name} is not a depth calibration ({error}); create one with: python -m specviz calibrate ddd."
            ) from error


@dataclass(frozen=True)
class Parameters:
    """The paper uses depth 11, width 10, 59 nodes, and the threshold -0.3 at levels 5, 7 and 9."""

    threshold: str = choice(
        "calibrated",
        ("calibrated", "paper", "own"),
        "Log probability of the beam below which the tree stops growing. Calibrated: the fastest on this machine, for the "
        "included EAGLE-3 heads; other heads use -0.3. Paper: -0.3. Own: log_mass below.",
    )
    log_mass: float = number(
        -1.5, -12.0, 0.0,
        "Your own threshold; -0.3 corresponds to 74 % of the probability. The drafter's probabilities are those at the run's "
        "temperature, but at least at 0.8, as for the calibrated threshold.",
        step=0.05,
    )  # fmt: skip
    levels: str = choice(
        "matching",
        ("matching", "every", "published"),
        "Levels at which the beam is tested. Matching: levels 5, 7 and 9 with the paper's threshold, else every level. "
        "Published: levels 5, 7 and 9.",
    )
    depth: int = number(8, 1, 12, "Maximum depth of the tree; the paper uses 11.", "levels")
    width: int = WIDTH
    nodes: int = NODES
    drafter: str = choice("eagle3", ("eagle", "eagle3"), "Drafter heads; the paper uses EAGLE's.")


@Card(name="ddd", exactness=TOKEN_EXACT, family="features", parameters=Parameters, weights=("eagle3",))
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    network = resources.drafter_weights(parameters.drafter)
    needed = not parameters.nodes or parameters.threshold == "calibrated"
    costs = tree_costs(resources, network, parameters.width) if needed else None
    size = parameters.nodes if costs is None else parameters.nodes or costs
    stop, warnings = _stop(parameters, resources, None if costs is None else costs.now())
    # A threshold only suits the probabilities of its calibration, so the paper's is tested on unsharpened ones. Calibrations are
    # recorded with the threshold own.
    temperature_floor = 0.0 if warnings or parameters.threshold == "paper" else parts.MIN_CONFIDENCE_TEMPERATURE
    builder = parts.Dynamic(parameters.depth, parameters.width, size, stop, temperature_floor)
    return parts.single_drafter(
        parts.FeatureDrafter(network), builder, parts.Match(), network.config.taps, parameters.drafter, warnings
    )


def _stop(
    parameters: Parameters, resources: MethodResources, costs: parts.SpeedupPolicy | None
) -> tuple[BeamMass, tuple[str, ...]]:  # fmt: skip
    """Return the stop rule, and warnings for the user."""
    below: tuple[float, ...] = ()
    warnings: tuple[str, ...] = ()
    threshold, forward = PUBLISHED_THRESHOLD, None
    if parameters.threshold == "calibrated":
        calibration = CalibratedDepth.load(resources.tree_file("ddd"))
        if resources.uses_shipped_weights and calibration.drafter == parameters.drafter:
            assert costs is not None, "a calibrated threshold requires costs"
            tested = PUBLISHED_LEVELS if parameters.levels == "published" else ()
            ahead = parts.ahead_on(resources.target.device)
            threshold = calibration.threshold_that_pays(costs, parameters.depth, tested, parameters.nodes, ahead)
            below, forward = calibration.below(threshold), float(costs.forward / costs.cost[0])
        else:
            heads = parameters.drafter if resources.uses_shipped_weights else resources.draft_name
            warnings = (
                f"The threshold was calibrated on {calibration.drafter} for {calibration.target}, but this run drafts with "
                f"{heads}, so the threshold is the paper's {PUBLISHED_THRESHOLD:g}. Choose threshold own to set another.",
            )
    elif parameters.threshold == "own":
        threshold = parameters.log_mass
    as_published = bool(warnings) or parameters.threshold == "paper"
    three = parameters.levels == "published" or (parameters.levels == "matching" and as_published)
    return BeamMass(threshold, PUBLISHED_LEVELS if three else (), below, forward), warnings
