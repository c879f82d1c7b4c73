"""The quick suite: what a user of the text tab can expect on this machine, in a few minutes."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from specviz.bench.kit.measure import Bencher, TimedRun, in_own_thread, median_ratio, range_text
from specviz.bench.kit.prompts import GROUNDED, KINDS, QUESTION
from specviz.bench.kit.report import Report, Row
from specviz.bench.suites.live import live_view
from specviz.errors import SpecvizError
from specviz.models.text.load import prepare as fetched
from specviz.request import Memory
from specviz.runner import Prepared

TRAJECTORIES = 4
STAND_HEAT = 0.6
STAND_TOKENS = 160


def run(report: Report, target: str, methods: Sequence[str]) -> None:
    """Every part whose method was asked for (all when ``methods`` is empty), in order."""
    bench = Bencher(target)
    parts: dict[str, Callable[[Report, Bencher], None]] = {
        "autoregressive": against_transformers,
        "recording": recording,
        "prompt_lookup": prompt_lookup,
        "token_recycling": token_recycling,
        "stand": stand,
        "speculative_sampling": speculative_sampling,
        "live": live_view,
    }
    for name, part in parts.items():
        if not methods or name in methods:
            # The live part has threads of its own, which no other may hold back.
            if part is live_view:
                part(report, bench)
            else:
                in_own_thread(partial(part, report, bench))


def against_transformers(report: Report, bench: Bencher) -> None:
    """Our autoregressive loop against ``generate`` of the model as transformers loads it, greedy, no early end."""
    ready = bench.prepared("autoregressive", QUESTION[0])
    tokens, target = bench.tokens, ready.target
    model = AutoModelForCausalLM.from_pretrained(fetched(bench.target), dtype=target.dtype, use_safetensors=True)
    model = model.to(target.device).eval()
    ids = torch.tensor([ready.prompt_ids], device=ready.target.device)
    # Values a call leaves unset come from the model's own settings, so the end token is taken out there.
    model.generation_config = GenerationConfig(do_sample=False, max_new_tokens=tokens, pad_token_id=0, use_cache=True)

    def theirs() -> float:
        started = time.perf_counter()
        generated = model.generate(ids, attention_mask=torch.ones_like(ids))
        spent = time.perf_counter() - started
        if generated.shape[1] != ids.shape[1] + tokens:
            raise SpecvizError("transformers stopped before the budget, so its time means nothing.")
        return spent

    def ours() -> float:
        return _full_run_seconds(ready)

    ours(), theirs()
    median, ratios = median_ratio(theirs, ours, 7)
    report.add(Row("autoregressive vs transformers.generate", median, goal=1.0, detail=f"{range_text(ratios)}, prefill included"))


def _full_run_seconds(ready: Prepared) -> float:
    """Seconds of a whole run that never ends early, prefill included."""
    decoding = ready.decoding(ready.compose(), 0, "off", threading.Event())
    decoding.ignore_eos = True
    started = time.perf_counter()
    for _ in decoding.steps():
        pass
    return time.perf_counter() - started


def recording(report: Report, bench: Bencher) -> None:
    """What recording every tree costs, on the method with the largest trees."""
    ready = bench.prepared("token_recycling", QUESTION[0], parameters={"tree": "published", "keep": False})
    bench.timed_run(ready)
    median, ratios = median_ratio(
        lambda: bench.timed_run(ready, record="tree").seconds, lambda: bench.timed_run(ready).seconds, 9
    )
    detail = f"80-node trees, recorded ÷ not recorded: {range_text(ratios)}"
    report.add(Row("recording costs", 100 * (median - 1), "%", 3.0, at_most=True, detail=detail))


def _speed_up(bench: Bencher, ready: Prepared, alone: Prepared, pairs: int) -> tuple[float, TimedRun]:
    """Own AR seconds a token over the method's, interleaved, and one of the method's runs."""
    runs: list[TimedRun] = []

    def method() -> float:
        runs.append(bench.timed_run(ready))
        return runs[-1].per_token

    median, _ = median_ratio(lambda: bench.timed_run(alone).per_token, method, pairs)
    return median, runs[-1]


def _mean_gains(
    bench: Bencher, name: str, prompts: Sequence[str], temperature: float = 0.0, pairs: int = 1
) -> tuple[float, float, str]:
    """Mean speed-up and mean τ over prompts, and each prompt's speed-up for the reader."""
    gains, taus = [], []
    for prompt in prompts:
        ready, alone = (bench.prepared(method, prompt, temperature) for method in (name, "autoregressive"))
        gain, timed = _speed_up(bench, ready, alone, pairs)
        gains.append(gain)
        taus.append(timed.tau)
    return statistics.mean(gains), statistics.mean(taus), "each: " + ", ".join(f"{gain:.2f}" for gain in gains)


def prompt_lookup(report: Report, bench: Bencher) -> None:
    """Grounded prompts, where it should shine, and open ones, where it should not hurt."""
    gain, tau, detail = _mean_gains(bench, "prompt_lookup", GROUNDED, pairs=3)
    report.add(Row("prompt_lookup, grounded prompts", gain, goal=1.5, detail=f"τ {tau:.2f}; {detail}"))
    gain, tau, detail = _mean_gains(bench, "prompt_lookup", [prompts[0] for prompts in KINDS.values()])
    report.add(Row("prompt_lookup, open prompts of six kinds", gain, detail=f"τ {tau:.2f}; {detail}"))


def token_recycling(report: Report, bench: Bencher) -> None:
    """A fresh matrix each run: what a first prompt gets."""
    gain, tau, detail = _mean_gains(bench, "token_recycling", [prompts[0] for prompts in KINDS.values()])
    report.add(Row("token_recycling, open prompts of six kinds", gain, detail=f"τ {tau:.2f}; {detail}"))


def speculative_sampling(report: Report, bench: Bencher) -> None:
    """The draft model that ships."""
    for temperature in (0.0, 1.0):
        gain, tau, detail = _mean_gains(bench, "speculative_sampling", [prompts[0] for prompts in KINDS.values()], temperature)
        report.add(Row(f"speculative_sampling, six kinds, T = {temperature:g}", gain, detail=f"τ {tau:.2f}; {detail}"))


def stand(report: Report, bench: Bencher) -> None:
    """Four trajectories of each prompt with one store a prompt: τ of each, speed-up of the first and the last.

    Answers are longer than elsewhere in this suite: the method is for long reasoning, and a store needs text to learn from.
    """
    bench = replace(bench, tokens=STAND_TOKENS)
    taus: list[list[float]] = [[] for _ in range(TRAJECTORIES)]
    gains: dict[int, list[float]] = {0: [], TRAJECTORIES - 1: []}
    for prompt in [prompts[0] for prompts in KINDS.values()]:
        memory = Memory()
        ready = bench.prepared("stand", prompt, STAND_HEAT, memory)
        alone = bench.prepared("autoregressive", prompt, STAND_HEAT)
        for number in range(TRAJECTORIES):
            timed = bench.timed_run(ready, seed=number)
            taus[number].append(timed.tau)
            if number in gains:
                gains[number].append(bench.timed_run(alone, seed=number).per_token / timed.per_token)
    means = [statistics.mean(row) for row in taus]
    first, last = (statistics.mean(row) for row in gains.values())
    detail = "τ by trajectory " + ", ".join(f"{tau:.2f}" for tau in means)
    detail += f"; speed-up of the 1st {first:.2f}; each 4th " + ", ".join(f"{gain:.2f}" for gain in gains[TRAJECTORIES - 1])
    report.add(Row(f"stand, 4th trajectory, T = {STAND_HEAT:g}", last, goal=1.3, detail=detail))
    report.add(Row("stand, τ of the 4th over the 1st trajectory", means[-1] / means[0], goal=1.0))
