"""Timings of a model with random weights.

Autoregressive decoding is compared with the memory bandwidth and with transformers, and a recorded run with an unrecorded one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from specviz.bench.first_run.random_model import PROMPT, Bench
from specviz.bench.first_run.sizes import Sizes
from specviz.bench.overheads import generate_seconds
from specviz.bench.report import Report, Row, paired
from specviz.engine.regions import Regions
from specviz.errors import SpecvizError

BANDWIDTH, TRANSFORMERS, RECORDING = 60.0, 2.0, 3.0
"""Goals: percentage of the memory bandwidth, speed-up over transformers, and overhead in percent."""


def bytes_of_a_pass(model: Any, columns: float) -> float:
    """Return the bytes that a one-token pass after ``columns`` tokens must read: all weights, keys and values.

    An embedding that is not tied to the head does not count, since a pass reads only one row.
    """
    config, weights = model.config, {id(one): one for one in model.parameters()}
    embedding = model.get_input_embeddings().weight
    if embedding is not model.get_output_embeddings().weight:
        del weights[id(embedding)]
    heads = config.num_key_value_heads or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cached = 2 * config.num_hidden_layers * heads * size * columns * embedding.element_size()
    return sum(one.numel() * one.element_size() for one in weights.values()) + cached


def waited(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def copy_bandwidth(sizes: Sizes) -> float:
    """Return the bytes per second that a large copy reads and writes: the median of ``pairs`` timings of ten copies."""
    source = torch.ones(sizes.copied, dtype=torch.uint8, device=sizes.device)
    target, rates = torch.empty_like(source), []
    for _ in range(sizes.pairs + 1):
        waited(sizes.device)
        started = time.perf_counter()
        for _ in range(10):
            target.copy_(source)
        waited(sizes.device)
        rates.append(20 * sizes.copied / (time.perf_counter() - started))
    return statistics.median(rates[1:])


def autoregressive(report: Report, name: str, sizes: Sizes) -> None:
    """Measure tokens per second and the share of the memory bandwidth in every tier. The fastest tier is also compared with
    transformers' ``generate``, eager and compiled.
    """
    copied = copy_bandwidth(sizes)
    report.add(Row("memory bandwidth of a copy", copied / 1e9, "GB/s"))
    bench = Bench.with_random_weights(sizes, sizes.shapes[name])
    size = f"{sum(one.numel() for one in bench.model.parameters()) / 1e9:.2f} billion weights"
    rates: dict[float, Bench] = {}
    Regions.background = False  # a pass waits for the compiler
    for tier in sizes.tiers:
        ours = bench.in_tier(tier)
        ours.run("autoregressive")  # captures the graphs
        found = [timed.tokens / timed.decoding for timed in (ours.run("autoregressive") for _ in range(sizes.pairs))]
        rate = statistics.median(found)
        rates[rate] = ours
        used = bytes_of_a_pass(bench.model, PROMPT + sizes.tokens / 2) * rate
        spread = f"{min(found):.1f}–{max(found):.1f} over {len(found)} runs of {sizes.tokens} tokens, without prefill"
        report.add(Row(f"{size}, {tier}: autoregressive", rate, "/s", detail=spread))
        detail = f"{used / 1e9:.0f} of {copied / 1e9:.0f} GB/s"
        report.add(Row(f"{size}, {tier}: share of the memory's bandwidth", 100 * used / copied, "%", BANDWIDTH, detail=detail))
        if ours.target.decoder and not ours.target.decoder.regions.compiled:
            raise SpecvizError(" ".join(ours.target.decoder.regions.take_news()) or "No pass was compiled.")
    fastest = rates[max(rates)]
    for static, goal in ((False, TRANSFORMERS), (True, 1.0))[: len(sizes.tiers)]:
        label = "transformers.generate" + ", compiled" * static
        theirs = generate_seconds(bench.model, bench.prompt, sizes.tokens, static)
        theirs(), theirs()  # compiles
        pairs = sizes.pairs if static else max(2, sizes.pairs // 3)  # an eager run takes seconds
        ratios = paired(theirs, lambda: fastest.run("autoregressive").whole, pairs)
        report.add(Row(f"{size}: autoregressive vs {label}", ratios.median, goal=goal, detail=f"{ratios}, prefill included"))


def recording(report: Report, sizes: Sizes) -> None:
    """Measure the cost of recording every 80-node tree."""
    bench, values = Bench.with_random_weights(sizes, sizes.shapes["1b"]), {"tree": "published", "keep": False}
    bench.run("token_recycling", values, "tree"), bench.run("token_recycling", values)

    def seconds(level: str) -> Callable[[], float]:
        return lambda: bench.run("token_recycling", values, level).decoding

    ratios = paired(seconds("tree"), seconds("off"), sizes.pairs)
    detail = f"80-node trees, recorded ÷ not recorded: {ratios}"
    report.add(Row("recording costs", 100 * (ratios.median - 1), "%", RECORDING, True, detail))
