"""Sizes of the first run on a GPU, and of a dry run on any machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Shape of a Llama with random weights."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int


@dataclass(frozen=True)
class Sizes:
    """Sizes of a first run.

    ``shapes``: models with random weights by name. ``tokens``: per run. ``pairs``: pairs of runs per median. ``prompts``: per
    method. ``targets``: target by suite. ``tiers``: graph, and compiled if anything is to be compiled. ``whole``: time limit in
    seconds for all parts. ``methods``: methods to run in the suites; empty for all.
    """

    device: str
    dtype: str
    shapes: dict[str, Shape]
    tokens: int
    pairs: int
    prompts: int
    copied: int
    """Bytes to copy in the bandwidth measurement."""
    targets: dict[str, str]
    tests: tuple[str, ...]
    """Arguments for pytest, after the folder."""
    tiers: tuple[str, ...] = ("graph", "compiled")
    whole: float = 480.0
    methods: tuple[str, ...] = ()


LLAMA_1B = Shape(hidden=2048, inner=8192, layers=16, heads=32, kv_heads=8, vocab=128256)
"""Shape of Llama 3.2 1B: 1.24 billion weights. All shapes have tied embeddings."""
LLAMA_8B = Shape(hidden=4096, inner=14336, layers=32, heads=32, kv_heads=8, vocab=128256)
SMOLLM2 = Shape(hidden=576, inner=1536, layers=30, heads=9, kv_heads=3, vocab=49152)
TINY = Shape(hidden=32, inner=64, layers=6, heads=4, kv_heads=2, vocab=96)

GPU = Sizes(
    device="cuda", dtype="bfloat16", shapes={"1b": LLAMA_1B, "8b": LLAMA_8B, "smollm2": SMOLLM2}, tokens=96, pairs=11,
    prompts=3, copied=1 << 30, tests=("-n", "4", "-m", "gpu"),
    targets={"text": "smollm2-135m-instruct", "vision": "scenes-vlm", "image": "emoji-64", "hybrid": "hybrid-small"},
)  # fmt: skip
DRY = Sizes(
    device="cpu", dtype="float32", shapes=dict.fromkeys(GPU.shapes, TINY), tokens=8, pairs=2, prompts=2, copied=1 << 20,
    targets={"text": "hybrid-small", "vision": "scenes-vlm", "image": "emoji-32", "hybrid": "hybrid-small"}, whole=900.0,
    tests=("-n", "0", "-m", "not gpu and not slow", "-k", "autoregressive and warm or memory"), tiers=("graph",),
    methods=("prompt_lookup", "hivis", "speculative_jacobi"),
)  # fmt: skip
