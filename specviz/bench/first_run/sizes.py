"""How much each part of the first run measures: on a GPU, and in the dry run that any machine makes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A Llama of random weights. Its ``draft_vocab`` is that of the EAGLE-3 drafter on it."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    draft_vocab: int


@dataclass(frozen=True)
class Sizes:
    """``tokens`` a run, ``pairs`` of runs behind each median, ``prompts`` a method, ``whole`` seconds for all parts. Of a suite's
    methods those in ``methods`` alone are run, all where it is empty; ``targets`` are by suite."""

    device: str
    dtype: str
    shape: Shape
    tokens: int
    pairs: int
    prompts: int
    copied: int
    """Bytes of the tensor whose copy measures the memory's bandwidth."""
    targets: dict[str, str]
    tests: tuple[str, ...]
    """Arguments of pytest, beside the folder."""
    whole: float = 480.0
    methods: tuple[str, ...] = ()


LLAMA_1B = Shape(hidden=2048, inner=8192, layers=16, heads=32, kv_heads=8, vocab=128256, draft_vocab=32000)
"""The shape of Llama 3.2 1B: 1.24 billion weights, the head's being the embedding's."""
TINY = Shape(hidden=32, inner=64, layers=6, heads=4, kv_heads=2, vocab=96, draft_vocab=40)

GPU = Sizes(
    device="cuda", dtype="bfloat16", shape=LLAMA_1B, tokens=96, pairs=11, prompts=3, copied=1 << 30,
    targets={"text": "smollm2-135m-instruct", "vision": "scenes-vlm", "image": "emoji-64", "hybrid": "hybrid-small"},
    tests=("-n", "4", "-m", "gpu"),
)  # fmt: skip
DRY = Sizes(
    device="cpu", dtype="float32", shape=TINY, tokens=8, pairs=2, prompts=2, copied=1 << 20,
    targets={"text": "hybrid-small", "vision": "scenes-vlm", "image": "emoji-32", "hybrid": "hybrid-small"}, whole=900.0,
    tests=("-n", "0", "-m", "not gpu and not slow", "-k", "autoregressive and warm or memory"),
    methods=("prompt_lookup", "hivis", "speculative_jacobi"),
)  # fmt: skip
