"""DEER's claim where a small drafter can know the text: does acceptance fall less with depth than along a chain of EAGLE's?

DEER (arXiv 2512.15176) holds that a block filled at once has no left-to-right error build-up. A masked language model of a
hundred thousand weights cannot know natural text, so the claim is tried on synthetic code, whose text follows from the question.
A tiny target learns to write it; the masked model with DEER's stages and EAGLE's one layer learn from the same answers of the
target, each with the recipe of what ships, for about as many seconds of one core. Acceptance at a place, given that the
places before it were right, is taken with a block and a chain begun at every token of answers that were kept out; a run from
question to end through the engine, also of questions kept out, gives τ and the longest accepted block.
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
from specviz.bench.report import Row
from specviz.drafters.feature_drafter import FeatureDrafter
from specviz.drafters.feature_net import FeatureNet
from specviz.drafters.masked_block import MaskedBlock
from specviz.drafters.masked_lm import MaskedLM
from specviz.engine.controller import Steady
from specviz.engine.interfaces import Composition
from specviz.engine.loop import Decoding
from specviz.engine.recorder import Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import chain
from specviz.errors import SpecvizError
from specviz.growth.sampled import Sampled
from specviz.targets.text import TextTarget
from specviz.trace.metrics import tau
from specviz.trace.schema import Step
from specviz.training import eagle, programs, synthetic_code
from specviz.training.foresight import foresight
from specviz.training.synthetic_code import LONGEST, MARKERS, Plan, World

PLACES = 8
"""Places whose acceptance is told: of every block and every chain."""
BLOCK = 32
"""Masks of a block and links of a chain in the runs through the engine."""
DEEP = slice(4, PLACES)
"""Places 5 to 8, which are set against the first."""
ASKED = 12
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
        return [one / max(1, all_) for one, all_ in zip(self.right, self.reached, strict=True)]

    @property
    def kept(self) -> float:
        """Mean acceptance at places 5 to 8 over that at the first; 0 where the first is never right."""
        shares = self.shares
        return float(np.mean(shares[DEEP])) / shares[0] if shares[0] else 0.0


@dataclass(frozen=True)
class Written:
    """Runs through the engine: ``tau`` in tokens a target pass, and how many drafts each step accepted."""

    tau: float
    lengths: tuple[int, ...]


class Words:
    """A TokenText of the toy language."""

    def of(self, token: int) -> str:
        return programs.WORDS[token] + " "

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.of(token) for token in more)


def rows(plan: Plan | None = None) -> list[Row]:
    """Everything from the target's training on: a minute or two of one core."""
    plan = plan or Plan()
    with tempfile.TemporaryDirectory() as folder:
        made = synthetic_code.world(plan, Path(folder))
        net, spent = synthetic_code.chain(made, plan)
        model, found = synthetic_code.block(made, plan)
        curves = {arm: blocks(synthetic_code.use(model, found, arm), made) for arm in found.arms}
        curves["chain"] = chains(net, made)
        synthetic_code.use(model, found, "deer")
        ran = {"deer": written(made, block_of(model)), "chain": written(made, chain_of(net))}
    cost = {"deer": sum(found.seconds[arm] for arm in ("base", "first", "deer")), "chain": spent}
    sizes = {"deer": _learned(model), "chain": _learned(net)}
    return [flatter(curves, cost, sizes), first_place(curves), longest(ran)]


def flatter(curves: dict[str, Curve], cost: dict[str, float], sizes: dict[str, int]) -> Row:
    """How much of the first place's acceptance is left at places 5 to 8: DEER's blocks over EAGLE's chains."""
    ours, theirs = curves["deer"], curves["chain"]
    detail = "; ".join(
        f"{name} {_told(curves[arm])} ({sizes[arm]} weights, {cost[arm]:.0f} s of one core), {curves[arm].kept:.3f} kept"
        for arm, name in (("deer", "DEER"), ("chain", "EAGLE"))
    )
    name = NAME + "acceptance at places 5 to 8 ÷ at place 1, DEER over EAGLE"
    return Row(name, ours.kept / theirs.kept if theirs.kept else None, goal=1.0, detail=detail)


def first_place(curves: dict[str, Curve]) -> Row:
    """What the second stage did for the first place, and what as many more updates of the first stage did."""
    share = {arm: curves[arm].shares[0] for arm in ("base", "first", "deer", "control")}
    detail = (
        f"{share['base']:.3f} as the base, {share['first']:.3f} after the first stage, {share['deer']:.3f} after the second, "
        f"{share['control']:.3f} after as many more updates of the first; {curves['deer'].reached[0]} places"
    )
    gain = share["deer"] / share["first"] if share["first"] else None
    name = NAME + "acceptance of the first place, after DEER's second stage over after its first"
    return Row(name, gain, goal=1.0, detail=detail)


def longest(ran: dict[str, Written]) -> Row:
    """The longest block that the engine accepted whole or in part."""
    told = "; ".join(f"{name} τ {ran[arm].tau:.2f}, longest {max(ran[arm].lengths, default=0)}"
                     for arm, name in (("deer", "DEER"), ("chain", "EAGLE")))  # fmt: skip
    detail = f"of {BLOCK}; {told}; {len(ran['deer'].lengths)} steps of DEER's"
    return Row(NAME + "longest accepted block", float(max(ran["deer"].lengths, default=0)), "tokens", detail=detail)


@torch.inference_mode()
def blocks(model: MaskedLM, made: World, places: int = PLACES) -> Curve:
    """One block from every token of the held-out answers at temperature 0, where acceptance is agreement with the target."""
    reached, right = np.zeros(places + 1, int), np.zeros(places, int)
    for number in made.held_out[:ASKED]:
        text = torch.tensor([*MARKERS.prefix, *made.dialogues.of(number)])
        for start in range(len(text) - len(made.dialogues.answer(number)), len(text) - places + 1):
            best = model.draft_ids[model(text[:start], places).argmax(-1)]
            accepted = int((best == text[start : start + places]).int().cumprod(0).sum())
            reached[: accepted + 1] += 1
            right[:accepted] += 1
    return Curve(tuple(reached[:places].tolist()), tuple(right.tolist()))


def chains(net: FeatureNet, made: World, places: int = PLACES) -> Curve:
    """The same of a chain that feeds on its own features, from the same tokens."""
    found = foresight(net, made.store, eagle.TAPS, made.held_out[:ASKED], places)
    starts = sum(max(0, len(made.dialogues.answer(number)) - places + 1) for number in made.held_out[:ASKED])
    reached, right = [starts], []
    for place in range(places):
        right.append(round(found[f"first{place + 1}"] * reached[-1]))
        reached.append(right[-1])
    return Curve(tuple(reached[:places]), tuple(right))


def block_of(model: MaskedLM) -> Composition:
    """What the method ``deer`` composes."""
    return Composition(Steady(MaskedBlock(model, BLOCK), Sampled(chain(BLOCK))), Rejection())


def chain_of(net: FeatureNet) -> Composition:
    """EAGLE's drafter in a chain as long."""
    return Composition(Steady(FeatureDrafter(net), Sampled(chain(BLOCK))), Rejection(), net.config.taps)


def written(made: World, composition: Composition, runs: int = RUNS) -> Written:
    """Programs written through the engine at temperature 0. Raises SpecvizError where it does not write the target's own."""
    target = TextTarget(made.model, "synthetic code", (MARKERS.end,), "eager")
    steps: list[Step] = []
    for number in made.held_out[:runs]:
        asked = [*MARKERS.prefix, *made.dialogues.of(number)[: made.dialogues.prompt[number]].tolist()]
        decoding = Decoding(target, composition, asked, Warp(), Noise(0), LONGEST, Recorder(Words(), "off"))
        steps += decoding.steps()
        if decoding.outcome.output_ids != made.dialogues.answer(number).tolist():
            raise SpecvizError(f"Drafted, the target wrote another program: {decoding.outcome.message or 'a fault of ours'}.")
    whole = tuple(len(step.path) for step in steps if step.cut is None)
    return Written(tau(steps) or 1.0, whole)


def _told(curve: Curve) -> str:
    return " ".join(f"{share:.3f}" for share in curve.shares)


def _learned(net: MaskedLM | FeatureNet) -> int:
    """Weights that training moved: the target's embedding and head are buffers."""
    weights: list[Tensor] = list(net.parameters())
    return sum(weight.numel() for weight in weights)
