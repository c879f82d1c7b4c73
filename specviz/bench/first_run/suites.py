"""The tests in ``tests/gpu``, and every method of a modality against plain decoding by the target, in alternating runs."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from pathlib import Path

from specviz.bench.first_run.sizes import Sizes
from specviz.bench.kit import Bencher, PictureQuestion
from specviz.bench.report import Ratios, Report, Row
from specviz.bench.suites import held_out_scenes
from specviz.engine.regions import Regions
from specviz.errors import SpecvizError
from specviz.methods.registry import all_methods
from specviz.prompts import kinds, pictures

ROOT = Path(__file__).resolve().parents[3]
MODALITIES = {"text": "text", "fused": "text", "vision": "vision_language", "image": "image", "hybrid": "text"}
LAST = ("not_a_bandit", "bandit_ucb", "bandit_exp3")
"""Methods to run last, because they run all drafters in every round. On an H200 these three took most of the suite's time."""
FUSED = ("prompt_lookup", "eagle3", "ddd", "eagle2", "dspark", "ddtree")
"""Methods to run in the compiled tier as well."""
HYBRID = ("stree", "prompt_lookup", "suffix_decoding", "token_recycling")
"""Methods with drafts that a target with recurrent layers can verify."""


def suite(report: Report, name: str, sizes: Sizes) -> None:
    """Measure every method of the modality: median speed-up over the prompts, sign test and τ."""
    target = sizes.targets.get(name, sizes.targets["text"])
    tier = sizes.tiers[-1] if name == "fused" else "auto" if target == "hybrid-small" else "graph"
    bench = Bencher(target, sizes.tokens, {"device": sizes.device, "tier": tier})
    able = {"hybrid": HYBRID, "fused": FUSED}.get(name)
    texts = prompts(name, sizes.prompts)
    Regions.background = False  # a pass waits for the compiler
    for method, card in sorted(all_methods().items(), key=lambda entry: entry[0] in LAST):
        fits = method in able if able else not card.targets and method != "autoregressive"
        if fits and MODALITIES[name] in card.modality and (not sizes.methods or method in sizes.methods):
            report.add(compare(bench, name, method, texts))


def prompts(name: str, count: int) -> Sequence[str | PictureQuestion]:
    """Return ``count`` held-out prompts: texts of as many kinds as possible, evenly spaced scenes, or the first pictures."""
    if name == "image":
        return pictures(count)
    if name == "vision":
        questions = held_out_scenes()
        return questions[:: max(1, len(questions) // count)][:count]
    several = list(kinds().values())
    return [several[number % len(several)][number // len(several)] for number in range(count)]


def compare(bench: Bencher, name: str, method: str, texts: Sequence[str | PictureQuestion]) -> Row:
    """Measure one method: at temperature 1 for images, otherwise greedily. A method that fails gets a row with the reason."""
    temperature = 1.0 if name == "image" else 0.0
    gains, taus, tier = list[float](), list[float](), ""
    try:
        for number, text in enumerate(texts):
            ready, alone = (bench.prepared(one, text, temperature) for one in (method, "autoregressive"))
            if not number:  # to capture the graphs
                bench.timed_run(ready), bench.timed_run(alone)
            order = (alone, ready) if number % 2 else (ready, alone)
            timed = {id(one): bench.timed_run(one) for one in order}
            if not all(run.ids for run in timed.values()):
                raise SpecvizError("A run produced no tokens.")
            gains.append(timed[id(alone)].per_token / timed[id(ready)].per_token)
            taus.append(timed[id(ready)].tau)
            tier, decoder = ready.target.tier, getattr(ready.target, "decoder", None)
            if decoder is not None:  # the compiled tier was asked for
                tier = "compiled"
                if not decoder.regions.compiled:
                    raise SpecvizError(" ".join(decoder.regions.take_news()) or "No pass was compiled.")
    except Exception as fault:  # a fault in one method must not end the suite
        kind = "" if isinstance(fault, SpecvizError) else f"{type(fault).__name__}: "
        return Row(f"{method} · {name}", None, detail=f"{kind}{fault}")
    paired, tau = Ratios(tuple(gains)), statistics.median(taus)
    cells = {"method": f"`{method}`", "speed-up": f"{paired.median:.2f}×", "τ": f"{tau:.2f}", "tier": tier, "pairs": str(paired)}
    return Row(f"{method} · {name}", paired.median, detail=f"τ {tau:.2f}, tier {tier}; {paired}", cells=cells, table=name)


def tests(report: Report, sizes: Sizes) -> None:
    """Run ``tests/gpu`` and report the numbers of passed and failed tests."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tests.xml"
        options = ["-q", "--no-header", "-p", "no:cacheprovider", f"--junitxml={file}", *sizes.tests]
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "tests/gpu", *options], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if not file.is_file():
            raise SpecvizError(f"pytest did not run: {(ran.stderr or ran.stdout).strip()[-400:]}")
        for row in rows_of_junit(file):
            report.add(row)


def rows_of_junit(file: Path) -> list[Row]:
    """Return the rows for a JUnit file. Raises SpecvizError if no test ran."""
    cases = list(xml.parse(file).getroot().iter("testcase"))
    by_kind: dict[str, list[str]] = {"failed": [], "skipped": [], "passed": []}
    for case in cases:
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        by_kind[kind].append(case.get("name", ""))
    if not by_kind["passed"] and not by_kind["failed"]:
        raise SpecvizError(f"No test in tests/gpu ran; {len(by_kind['skipped'])} were skipped.")
    passed, failed = by_kind["passed"], by_kind["failed"]
    detail = f"{len(by_kind['skipped'])} skipped"
    return [
        Row("tests/gpu, passed", float(len(passed)), "tests", detail=detail),
        Row("tests/gpu, failed", float(len(failed)), "tests", 0.0, True, detail="; ".join(failed)[:1500]),
    ]
