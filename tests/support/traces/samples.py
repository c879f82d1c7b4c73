"""Realistic recorded runs for tests that need one: no model, any length, any method's notes, repeatable by seed.

From a test: ``sample_trace(steps=14, method="stand")``; ``lines(trace)`` is what the viewer reads. To a file:
``python tests/support/traces/samples.py OUT.spectrace.jsonl [method [steps]]`` from the repository's root.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from specviz.trace import metrics, schema, store
from specviz.trace.schema import Baseline, Divergence, End, Run, Sampling, Step, Trace
from tests.support.traces.sample_rounds import KINDS, PIECES, Round, Words

METHODS = tuple(KINDS)
PROMPT = 'Explain why the sky is blue, then copy this line: {"name": "Ada", "born": 1815}'


def sample_trace(
    steps: int = 14, seed: int = 0, *, method: str = "token_recycling", baseline: bool = True, ended: bool = True,
    nodes: int = 24, modality: str = "text", notes: bool = True, reason: str = "budget", cut: bool = True,
) -> Trace:  # fmt: skip
    """A run of ``steps`` rounds with trees of 8 to ``nodes`` nodes (chains for chain methods, none for autoregressive).

    Tree methods have statuses root, accepted, rejected, skipped, pruned; ``method="relaxed"`` adds the other two.
    ``ended=False`` is a run still going on. ``modality="image"`` gives nodes a place in a grid 32 wide. ``cut`` cuts
    the last step short when ``reason`` is one that can.
    """
    generator = random.Random(f"{seed} {method} {modality}")
    words = Words(modality)
    prompt = ("<image>",) if modality == "image" else tuple(PIECES.findall(PROMPT))
    found: list[Step] = []
    place = 0
    for index in range(steps):
        last = index == steps - 1 and ended and cut and reason in ("eos", "budget", "context")
        made = Round(generator, words, method, index, place, len(prompt) - 1 + place, nodes)
        found.append(made.step(reason if last else None, notes))
        place += len(found[-1].emitted)
    run = _run(method, modality, prompt, place, seed)
    return Trace(run, tuple(found), _end(generator, run, found, reason, baseline) if ended else None)


def lines(trace: Trace) -> list[str]:
    """The trace as the lines of its file, without line ends."""
    return store.lines(trace)


def dump(path: str | Path, trace: Trace | None = None) -> Path:
    """Write a trace (the plain sample when None) to a file and return its path."""
    store.write(trace or sample_trace(), path)
    return Path(path)


def _run(method: str, modality: str, prompt: tuple[str, ...], length: int, seed: int) -> Run:
    kind = KINDS[method]
    return Run(
        modality=modality, target="smollm2-135m-instruct", method=method, title=kind.title, exactness=kind.exactness,
        parameters=kind.parameters, sampling=Sampling(kind.temperature, 0, 1.0, seed), device="cpu", dtype="bfloat16",
        tier="eager", prompt="".join(prompt), prompt_pieces=prompt, max_new_tokens=max(length, 1), bound=kind.bound,
        draft=kind.draft, chat_template=modality == "text", tokenizer_hash="sha256:9ca9acddb6525a19",
        machine="2 CPU cores", libraries={"torch": "2.8.0", "transformers": "5.23.0"},
        recorded_at="2026-03-02T09:30:00Z", warnings=("This run is a sample made for tests.",),
    )  # fmt: skip


def _end(generator: random.Random, run: Run, steps: list[Step], reason: str, baseline: bool) -> End:
    output = tuple(token for step in steps for token in step.emitted)
    plain = None
    if baseline:
        times = tuple(generator.randint(38_000_000, 46_000_000) for _ in output)
        apart = Divergence(len(output) // 2, 0.03125) if run.exactness == "relaxed" and output else None
        plain = Baseline(times, 61_000_000, apart is None, apart)
    counted = schema.rounded(metrics.summarise(steps, reason, 63_000_000, plain))
    text = "".join(piece for step in steps for piece in step.pieces)
    return End(reason, output, text, 63_000_000, counted, "", plain)


if __name__ == "__main__":
    asked = sys.argv[2:] + ["token_recycling", "14"][len(sys.argv[2:]) :]
    print(dump(sys.argv[1], sample_trace(int(asked[1]), method=asked[0])))
