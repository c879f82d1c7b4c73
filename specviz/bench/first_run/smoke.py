"""Whether the tests of ``tests/gpu`` pass there, and whether two trainings run and learn for some seconds each."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from specviz.bench.first_run.random_model import random_llama
from specviz.bench.first_run.sizes import Shape, Sizes
from specviz.bench.kit.report import Report, Row
from specviz.drafters.networks.feature_net import FeatureNet
from specviz.errors import SpecvizError
from specviz.training.common import data
from specviz.training.common.features import FeatureStore
from specviz.training.common.loop import TrainState
from specviz.training.common.optimizer import Optimizer
from specviz.training.common.parallel import products
from specviz.training.feature import eagle3, feature_start
from specviz.training.feature.recipes import FeatureTraining, Settings, learned
from specviz.training.registry import WEIGHTS
from specviz.training.vision import make_scenes_vlm

ROOT = Path(__file__).resolve().parents[3]
LEARNING = Shape(hidden=512, inner=1024, layers=6, heads=8, kv_heads=4, vocab=8192, draft_vocab=4096)
"""A target of random weights that a drafter can learn to foresee."""
DIALOGUES, LENGTH, ASKED = 32, 64, 16
LOUD = 3.0
"""Standard deviation of its logits."""
FEWEST = 4
"""Updates that are made however long they take."""
MOST = 0.9
"""Share of the time that an update is told has gone, at most: near 1 the learning rate is nothing."""


def tests(report: Report, sizes: Sizes) -> None:
    """``tests/gpu``, which runs every method in the graph tier on the device."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tests.xml"
        options = ["-q", "--no-header", "-p", "no:cacheprovider", f"--junitxml={file}", *sizes.tests]
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "tests/gpu", *options], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if not file.is_file():
            raise SpecvizError(f"pytest did not run: {(ran.stderr or ran.stdout).strip()[-400:]}")
        for row in counted(file):
            report.add(row)


def counted(file: Path) -> list[Row]:
    """Rows of a JUnit file. Raises SpecvizError where nothing was run: that is no pass."""
    cases = list(xml.parse(file).getroot().iter("testcase"))
    by_kind: dict[str, list[str]] = {"failed": [], "skipped": [], "passed": []}
    for case in cases:
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        by_kind[kind].append(case.get("name", ""))
    if not by_kind["passed"] and not by_kind["failed"]:
        raise SpecvizError(f"No test of tests/gpu was run; {len(by_kind['skipped'])} were skipped.")
    passed, failed = by_kind["passed"], by_kind["failed"]
    detail = f"{len(by_kind['skipped'])} skipped"
    return [
        Row("tests/gpu, passed", float(len(passed)), "tests", detail=detail),
        Row("tests/gpu, failed", float(len(failed)), "tests", 0.0, True, detail="; ".join(failed)[:1500]),
    ]


def training(report: Report, sizes: Sizes) -> None:
    """EAGLE-3's recipe on a target of random weights, and the scenes model's from the weights that ship."""
    shape = LEARNING if sizes.device == "cuda" else sizes.shape
    with tempfile.TemporaryDirectory() as folder:
        state = drafter_training(replace(sizes, dtype="float32"), shape, Path(folder))
        before = mean_loss(state)
        report.add(speed("eagle3", state, sizes.training))
        after = mean_loss(state)
    detail = f"{before:.3f} to {after:.3f}, the same dialogues and draws"
    report.add(Row("training eagle3, loss after it of that before", after / before, "×", 1.0, True, detail))
    common = {"minutes": 1.0, "seed": 1}
    wide = (
        {"batch": 64, "seeing_batch": 128, "part": 64} if sizes.device == "cuda" else {"batch": 2, "seeing_batch": 2, "part": 2}
    )
    settings = make_scenes_vlm.Settings(**common, **wide)
    scenes = make_scenes_vlm.prepare(torch.device(sizes.device), settings, WEIGHTS / "scenes_vlm.safetensors")
    scenes.progress.provenance = "the weights that ship"
    report.add(speed("scenes_vlm", scenes, sizes.training))


def drafter_training(sizes: Sizes, shape: Shape, folder: Path) -> FeatureTraining:
    """EAGLE-3 on a target of random weights, which reads dialogues of random tokens."""
    model = random_llama(shape, sizes)
    with torch.no_grad():  # fresh weights hold every token for about as likely: there would be nothing to learn
        model.get_input_embeddings().weight.mul_(LOUD * shape.hidden**-0.5 / model.config.initializer_range)
    generator = np.random.default_rng(0)
    tokens = generator.integers(5, shape.vocab, DIALOGUES * LENGTH)
    dialogues = data.Dialogues(
        tokens, np.arange(0, DIALOGUES + 1) * LENGTH, np.full(DIALOGUES, ASKED), np.zeros(DIALOGUES, np.float32)
    )
    markers = data.Markers(prefix=(1, 2), turn=(3,), end=4)
    taps = (2, shape.layers // 2, shape.layers - 1, shape.layers)
    store = FeatureStore(model, dialogues, markers, taps, folder if sizes.device == "cpu" else None)
    embedding, head = model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach()
    ids = torch.arange(4, 4 + shape.draft_vocab, device=model.device)
    net = FeatureNet(feature_start.shape_of(model.config, taps[eagle3.TAPS], True), embedding, head, ids).to(model.device)
    everyone = list(range(DIALOGUES))
    feature_start.start(net, model, feature_start.sample(store, everyone[:8], embedding, eagle3.TAPS))
    place = data.places_in(ids, shape.vocab)
    return FeatureTraining(
        net, store, everyone, [], Settings(batch=4, together=4 if sizes.device == "cuda" else 1, workers=1, peak=0.01, warm=4),
        partial(eagle3.loss, net, place), lambda numbers: {}, Optimizer(learned(net), rough=products(model.device)),
    )  # fmt: skip


def mean_loss(state: FeatureTraining) -> float:
    """By answer token, over a few dialogues."""
    generator, numbers = torch.Generator().manual_seed(0), state.training[:8]
    answers = sum(len(state.store.dialogues.answer(number)) for number in numbers)
    with torch.no_grad():
        return sum(float(state.loss(seen, generator, 1.0 / answers)) for seen in state.store.get(numbers))


def speed(name: str, state: TrainState, seconds: float) -> Row:
    """Updates a second. Raises SpecvizError for a loss that is no number."""
    losses, spent = updates(state, seconds)
    if not all(map(math.isfinite, losses)):
        raise SpecvizError(f"The loss of {name} is no number after {len(losses)} updates.")
    return Row(
        f"training {name}",
        len(losses) / spent,
        "updates/s",
        detail=f"{len(losses)} updates, {state.progress.tokens} {state.unit}",
    )


def updates(state: TrainState, seconds: float) -> tuple[list[float], float]:
    """Losses of as many updates as ``seconds`` allow, and the seconds they took."""
    state.begin()
    losses, started = list[float](), time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds or len(losses) < FEWEST:
        losses.append(state.update(min(MOST, spent / seconds if seconds else 0.0)).loss)
    return losses, time.perf_counter() - started
