"""Overheads of the engine: decoding speed against transformers' ``generate``, and the cost of recording."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from specviz.bench.kit import Bencher
from specviz.bench.report import Report, Row, paired
from specviz.errors import SpecvizError
from specviz.models.text.load import prepare as fetched
from specviz.prompts import prompts


def against_transformers(report: Report, bench: Bencher) -> None:
    """Compare the autoregressive loop with transformers' ``generate`` on an unmodified model, both greedy and ignoring EOS."""
    ready = bench.prepared("autoregressive", prompts("question answering")[0])
    tokens, target = bench.tokens, ready.target
    model: Any = AutoModelForCausalLM.from_pretrained(fetched(bench.target), dtype=target.dtype, use_safetensors=True)
    run_transformers = generate_seconds(model.to(target.device).eval(), ready.prompt_ids, tokens)

    def run_specviz() -> float:
        decoding = ready.decoding(ready.compose(), 0)
        decoding.ignore_eos = True
        started = time.perf_counter()
        for _ in decoding.steps():
            pass
        return time.perf_counter() - started

    run_specviz(), run_transformers()
    ratios = paired(run_transformers, run_specviz, 7)
    report.add(Row("autoregressive vs transformers.generate", ratios.median, goal=1.0, detail=f"{ratios}, prefill included"))


def generate_seconds(model: Any, prompt: Sequence[int], tokens: int, static: bool = False) -> Callable[[], float]:
    """Return a function that returns the time in seconds of greedy decoding by transformers, ignoring EOS: uncompiled with a
    dynamic cache, or with a ``static`` one, for which transformers compiles the forward on a GPU.

    The function raises SpecvizError if ``generate`` stops early.
    """
    ids = torch.tensor([prompt], device=model.device)
    # generate fills unset options from the model's generation_config, so EOS must be removed there.
    kept = {"cache_implementation": "static"} if static else {}
    settings = GenerationConfig(do_sample=False, max_new_tokens=tokens, pad_token_id=0, use_cache=True, **kept)

    def run_transformers() -> float:
        model.generation_config = settings
        started = time.perf_counter()
        generated = model.generate(ids, attention_mask=torch.ones_like(ids)).tolist()  # synchronizes the device
        spent = time.perf_counter() - started
        if len(generated[0]) != len(prompt) + tokens:
            raise SpecvizError("transformers stopped before the requested number of tokens, so the times cannot be compared.")
        return spent

    return run_transformers


def recording(report: Report, bench: Bencher) -> None:
    """Measure the cost of recording every tree, with Token Recycling's trees of 80 nodes."""
    ready = bench.prepared("token_recycling", prompts("question answering")[0], parameters={"tree": "published", "keep": False})
    bench.timed_run(ready)
    ratios = paired(lambda: bench.timed_run(ready, record="tree").seconds, lambda: bench.timed_run(ready).seconds, 9)
    report.add(
        Row(
            "recording costs", 100 * (ratios.median - 1), "%", 3.0, at_most=True,
            detail=f"80-node trees, recorded ÷ not recorded: {ratios}",
        )
    )  # fmt: skip
