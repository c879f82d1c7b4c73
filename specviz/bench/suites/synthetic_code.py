"""DEER on synthetic code that a small drafter can know: acceptance by depth beside a chain of EAGLE's.

DEER (arXiv 2512.15176) holds that a block filled at once has no left-to-right error build-up. A masked language model of a
hundred thousand weights cannot know natural text, so the claim is tried on synthetic code, whose text follows from the question.
A tiny target learns to write it; the masked model with DEER's stages and EAGLE's one layer learn from the same answers of the
target, each with the recipe of what ships. Acceptance at a place, given that the places before it were right, is taken with
a block and a chain begun at every token of answers that were kept out; a run from question to end through the engine, also of
questions kept out, gives τ and the longest accepted block.

There are two chains to compare with. One learned until it hardly errs, in about as many seconds of a core as all of DEER,
which the rows tell: it reads the target's own features, and in so small a world nothing builds up any more. The other is one
of a few that learned for less: the one that is right at the first place about as often as DEER, so that what is compared is
the depth and not the skill. Of what such a chain loses most goes between places 1 and 2, where its own features first stand
for the target's, and little builds up after that; a block loses slowly, the further ahead it has to look. The rows show both
curves whole.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specviz.acceptance.rejection import Rejection
from specviz.bench.kit.report import Row
from specviz.drafters.feature_drafter import FeatureDrafter
from specviz.drafters.networks.feature_net import FeatureNet
from specviz.drafters.networks.masked_lm import MaskedLM
from specviz.engine.controller import SingleDrafter
from specviz.engine.interfaces import Composition
from specviz.engine.loop import Decoding
from specviz.engine.recorder import Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import chain
from specviz.errors import SpecvizError
from specviz.methods.diffuspec.drafter import MaskedBlock
from specviz.targets.text import TextTarget
from specviz.trace.metrics import tau
from specviz.trace.schema import Step
from specviz.training.feature import eagle
from specviz.training.feature.acceptance_eval import acceptance_figures
from specviz.training.toy import programs, synthetic_code
from specviz.training.toy.synthetic_code import LONGEST, MARKERS, Plan, World
from specviz.trees.sampled import Sampled

PLACES = 8
"""Places whose acceptance is told: of every block and every chain."""
BLOCK = 32
"""Masks of a block and links of a chain in the runs through the engine."""
DEEP = slice(4, PLACES)
"""Places 5 to 8, which are set against the first."""
EVALUATED = 12
"""Held-out answers, at most, along which acceptance is measured."""
RUNS = 6
"""Of these so many are written through the engine."""
NAME = "synthetic code: "


@dataclass(frozen=True)
class Curve:
    """Of ``reached`` [place] blocks whose earlier places were right, ``right`` [place] were right there too."""

    reached: tuple[int, ...]
    right: tuple[int, ...]

    @property
    def shares(self) -> list[float]:
        """Acceptance by place, given that the places before were right."""
        return [right / max(1, reached) for right, reached in zip(self.right, self.reached, strict=True)]

    @property
    def retention(self) -> float:
        """Mean acceptance at places 5 to 8 over that at the first; 0 where the first is never right."""
        shares = self.shares
        return float(np.mean(shares[DEEP])) / shares[0] if shares[0] else 0.0


@dataclass(frozen=True)
class EngineRuns:
    """Runs through the engine: ``tau`` in tokens a target pass, and how many drafts each step accepted."""

    tau: float
    lengths: tuple[int, ...]


class Words:
    """A TokenText of the toy language."""

    def of(self, token: int) -> str:
        return programs.WORDS[token] + " "

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.of(token) for token in more)


@dataclass(frozen=True)
class Drafter:
    """What is known of one drafter: its curve, its weights, and the seconds of one core that it learned for."""

    name: str
    curve: Curve
    weights: int
    seconds: float

    @property
    def summary(self) -> str:
        shares = " ".join(f"{share:.3f}" for share in self.curve.shares)
        return f"{self.name} {shares}, {self.curve.retention:.3f} kept ({self.weights} weights, {self.seconds:.0f} s of one core)"


def rows(plan: Plan | None = None) -> list[Row]:
    """Everything from the target's training on, on one core, so that its seconds can be told: two or three minutes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _rows(plan or Plan())
    finally:
        torch.set_num_threads(threads)


def _rows(plan: Plan) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        world = synthetic_code.world(plan, Path(folder))
        eagles = []
        for updates in plan.chains:
            net, seconds = synthetic_code.chain(world, plan, updates)
            eagles.append(Drafter(f"EAGLE after {updates} updates", chains(net, world), _trained_weights(net), seconds))
        ran = {"EAGLE": engine_runs(world, chain_of(net))}
        model, arms = synthetic_code.block(world, plan)
        curves = {arm: blocks(synthetic_code.use(model, arms, arm), world) for arm in arms.arms}
        ran["DEER"] = engine_runs(world, block_of(synthetic_code.use(model, arms, "deer")))
    deer = Drafter("DEER", curves["deer"], _trained_weights(model), sum(arms.seconds[arm] for arm in ("base", "first", "deer")))
    alike = min(eagles[:-1], key=lambda drafter: abs(drafter.curve.shares[0] - deer.curve.shares[0]))
    return [
        flatness_row("a chain of EAGLE's as good at place 1", deer, alike),
        flatness_row("a chain of EAGLE's that learned to the end", deer, eagles[-1]),
        *stages(curves),
        longest(ran),
    ]


def flatness_row(over: str, ours: Drafter, theirs: Drafter) -> Row:
    """How much of the first place's acceptance is left at places 5 to 8: DEER's blocks over a chain."""
    name = f"{NAME}acceptance at places 5 to 8 ÷ at place 1, DEER over {over}"
    gain = ours.curve.retention / theirs.curve.retention if theirs.curve.retention else None
    return Row(name, gain, goal=1.0, detail=f"{ours.summary}; {theirs.summary}")


def stages(curves: dict[str, Curve]) -> list[Row]:
    """What the second stage did for the first place and for the depth, and what as many more updates of the first did."""
    arms = {"base": "the base", "first": "first stage", "deer": "second stage", "control": "more of the first stage instead"}
    shares = {arm: curves[arm].shares[0] for arm in arms}
    retention = {arm: curves[arm].retention for arm in arms}
    rows = []
    for name, figures in (("of the first place", shares), ("at places 5 to 8 ÷ at place 1", retention)):
        detail = ", ".join(f"{words} {figures[arm]:.3f}" for arm, words in arms.items())
        gain = figures["deer"] / figures["first"] if figures["first"] else None
        name = f"{NAME}acceptance {name}, after DEER's second stage over after its first"
        rows.append(Row(name, gain, goal=1.0, detail=f"{detail}; {curves['deer'].reached[0]} places"))
    return rows


def longest(ran: dict[str, EngineRuns]) -> Row:
    """The longest block that the engine accepted, whole or in part, and what the chain that learned to the end did."""
    summary = "; ".join(f"{name} τ {runs.tau:.2f}, longest {max(runs.lengths, default=0)}" for name, runs in ran.items())
    lengths = ran["DEER"].lengths
    return Row(NAME + "longest accepted block", float(max(lengths, default=0)), "tokens", detail=f"of {BLOCK}; {summary}")


@torch.inference_mode()
def blocks(model: MaskedLM, world: World, places: int = PLACES) -> Curve:
    """One block from every token of the held-out answers at temperature 0, where acceptance is agreement with the target."""
    reached, right = np.zeros(places + 1, int), np.zeros(places, int)
    for number in world.held_out[:EVALUATED]:
        text = torch.tensor([*MARKERS.prefix, *world.dialogues.of(number)])
        for start in range(len(text) - len(world.dialogues.answer(number)), len(text) - places + 1):
            best = model.draft_ids[model(text[:start], places).argmax(-1)]
            accepted = int((best == text[start : start + places]).int().cumprod(0).sum())
            reached[: accepted + 1] += 1
            right[:accepted] += 1
    return Curve(tuple(reached[:places].tolist()), tuple(right.tolist()))


def chains(net: FeatureNet, world: World, places: int = PLACES) -> Curve:
    """The same of a chain that feeds on its own features, from the same tokens."""
    accuracies = acceptance_figures(net, world.store, eagle.TAPS, world.held_out[:EVALUATED], places)
    starts = sum(max(0, len(world.dialogues.answer(number)) - places + 1) for number in world.held_out[:EVALUATED])
    reached, right = [starts], []
    for place in range(places):
        right.append(round(accuracies[f"first{place + 1}"] * reached[-1]))
        reached.append(right[-1])
    return Curve(tuple(reached[:places]), tuple(right))


def block_of(model: MaskedLM) -> Composition:
    """What the method ``deer`` composes."""
    return Composition(SingleDrafter(MaskedBlock(model, BLOCK), Sampled(chain(BLOCK))), Rejection())


def chain_of(net: FeatureNet) -> Composition:
    """EAGLE's drafter in a chain as long."""
    return Composition(SingleDrafter(FeatureDrafter(net), Sampled(chain(BLOCK))), Rejection(), net.config.taps)


def engine_runs(world: World, composition: Composition, runs: int = RUNS) -> EngineRuns:
    """Programs written through the engine at temperature 0. Raises SpecvizError where it does not write the target's own."""
    target = TextTarget(world.model, "synthetic code", (MARKERS.end,), "eager")
    steps: list[Step] = []
    for number in world.held_out[:runs]:
        prompt_ids = [*MARKERS.prefix, *world.dialogues.of(number)[: world.dialogues.prompt[number]].tolist()]
        decoding = Decoding(target, composition, prompt_ids, Warp(), Noise(0), LONGEST, Recorder(Words(), "off"))
        steps += decoding.steps()
        if decoding.outcome.output_ids != world.dialogues.answer(number).tolist():
            raise SpecvizError(f"Drafted, the target wrote another program: {decoding.outcome.message or 'a fault of ours'}.")
    whole = tuple(len(step.path) for step in steps if step.cut is None)
    return EngineRuns(tau(steps) or 1.0, whole)


def _trained_weights(net: MaskedLM | FeatureNet) -> int:
    """Weights that training moved: the target's embedding and head are buffers."""
    weights: list[Tensor] = list(net.parameters())
    return sum(weight.numel() for weight in weights)
