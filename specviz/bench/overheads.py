"""What our engine costs: against transformers' own generate, recording against not recording, rows in step against one by one."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Sequence
from functools import partial

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from specviz.bench.kit import Bencher
from specviz.bench.report import Report, Row, paired
from specviz.errors import SpecvizError
from specviz.models.text.load import prepare as fetched
from specviz.prompts import prompts
from specviz.request import Memory
from specviz.requests.batch import EVERY, assemble
from specviz.runner import Prepared


def against_transformers(report: Report, bench: Bencher) -> None:
    """Our autoregressive loop against ``generate`` of the model as transformers loads it, greedy, no early end."""
    ready = bench.prepared("autoregressive", prompts("question answering")[0])
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
    ratios = paired(theirs, ours, 7)
    report.add(Row("autoregressive vs transformers.generate", ratios.median, goal=1.0, detail=f"{ratios}, prefill included"))


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
    ready = bench.prepared("token_recycling", prompts("question answering")[0], parameters={"tree": "published", "keep": False})
    bench.timed_run(ready)
    ratios = paired(lambda: bench.timed_run(ready, record="tree").seconds, lambda: bench.timed_run(ready).seconds, 9)
    detail = f"80-node trees, recorded ÷ not recorded: {ratios}"
    report.add(Row("recording costs", 100 * (ratios.median - 1), "%", 3.0, at_most=True, detail=detail))


def _seconds(ready: Sequence[Prepared], together: bool, every: int = EVERY) -> float:
    """Seconds a token of decoding these requests, prefill left out."""
    gc.collect()
    batches = [assemble(ready, every, "off")] if together else [assemble([request], every, "off") for request in ready]
    spent = tokens = 0.0
    for batch in batches:
        rows = list(batch.running)
        started = time.perf_counter()
        for _ in batch.rounds():
            pass
        spent += time.perf_counter() - started - sum(row.outcome.prefill_ns for row in rows) / 1e9
        tokens += sum(len(row.outcome.output_ids) for row in rows)
    return spent / max(1.0, tokens)


def rows_in_step(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """READER in step against READER one run after another, and against plain decoding in step, by number of rows."""
    bench, texts = Bencher(target), [*prompts("grounded"), *prompts("summarising")]

    def seconds(name: str, rows: int, together: bool) -> float:
        # A memory of its own each time: a method that remembers would copy its answer of the time before.
        return _seconds([bench.prepared(name, prompt, memory=Memory()) for prompt in texts[:rows]], together)

    for rows in (2, 4, 8):
        for name in ("reader", "autoregressive"):
            ratios = paired(partial(seconds, name, rows, False), partial(seconds, name, rows, True), 3)
            report.add(Row(f"{name}, {rows} rows in step ÷ one after another", ratios.median, detail=str(ratios)))
        ratios = paired(partial(seconds, "autoregressive", rows, True), partial(seconds, "reader", rows, True), 3)
        report.add(Row(f"reader ÷ plain decoding, {rows} rows in step", ratios.median, detail=str(ratios)))
