"""Simulated runs of methods whose notes tell how a tree grew or was judged: as real as a run without a model can be.

From a test: ``story_trace("eagle2")``. To a file:
``python tests/support/traces/stories.py OUT.spectrace.jsonl [method [steps]]``.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from specviz.trace import metrics, store, wire
from specviz.trace.schema import (
    Baseline,
    Bonus,
    Candidate,
    End,
    Nanoseconds,
    Note,
    Run,
    Sampling,
    Step,
    TargetRow,
    Trace,
)
from tests.support.traces import story_blocks, story_choices
from tests.support.traces.sample_rounds import PIECES, Words, rounded
from tests.support.traces.story_trees import Distributions, Sketch, blocks, dynamic, post_order, sampled, walk

PROMPT = "Why is the sky blue at noon and red in the evening? Answer in two sentences."
WIDTH, DEPTH, NODES = 10, 6, 60


@dataclass
class Told:
    """A step's tree with its verdict and its notes."""

    sketch: Sketch
    path: list[int]
    statuses: list[str]
    notes: list[Note]
    rule: str = "greedy"
    calls: int = 1
    thresholds: dict[int, float] | None = None
    draws: dict[int, float] | None = None


Teller = Callable[[Distributions, random.Random], Told]


def _builder(sketch: Sketch) -> Note:
    value = [rounded(leaf.value) for leaf in sketch.leaves]
    return Note("growth", {"beams": sketch.beams, "value": value, "kept": sketch.kept, "considered": sketch.considered})


def _dynamic(distributions: Distributions, generator: random.Random) -> Told:
    sketch = dynamic(distributions, DEPTH, WIDTH, NODES, lambda level, mass: True)
    return Told(sketch, *walk(sketch), [_builder(sketch)], calls=DEPTH)


def _mass(distributions: Distributions, generator: random.Random) -> Told:
    masses: list[float] = []
    threshold, limit = -2.0, 11

    def go(level: int, mass: float) -> bool:
        masses.append(rounded(mass))
        return not (level in (5, 7, 9) and mass < threshold)

    sketch = dynamic(distributions, limit, WIDTH, NODES, go)
    stopped = len(masses) if len(masses) < limit else None
    tested = [level for level in (5, 7, 9) if level <= len(masses)]
    data = {"mass": masses, "tested": tested, "threshold": threshold, "stopped": stopped, "limit": limit}
    return Told(sketch, *walk(sketch), [_builder(sketch), Note("mass", data)], calls=len(masses))


def _reward(distributions: Distributions, generator: random.Random) -> Told:
    after = dynamic(distributions, DEPTH, WIDTH, 25, lambda level, mass: True, most=0)
    before = dynamic(distributions, DEPTH, WIDTH, 25, lambda level, mass: True, skew=0.9, most=0)
    branches = _branches(after)
    reference = {
        "tokens": [distributions.words.ids[leaf.text] for leaf in before.leaves],
        "parents": [one.parent for one in before.leaves],
        "texts": [leaf.text for leaf in before.leaves],
    }  # fmt: skip
    data = {
        "reward": _lse(branches), "before": _lse(_branches(before)), "branches": branches, "reference": reference,
    }  # fmt: skip
    return Told(after, *walk(after), [_builder(after), Note("reward", data)], calls=DEPTH)


def _branches(sketch: Sketch) -> list[dict[str, Any]]:
    """Expected accepted length of every branch, the sum over its nodes of the product of p down to them."""
    generator = [1.0]
    length = [0.0]
    for leaf in sketch.leaves[1:]:
        generator.append(generator[leaf.parent] * leaf.p)
        length.append(length[leaf.parent] + generator[-1])
    inner = {leaf.parent for leaf in sketch.leaves}
    return [{"node": node, "length": rounded(length[node])} for node in range(1, len(sketch.leaves)) if node not in inner]


def _lse(branches: list[dict[str, Any]]) -> float:
    return rounded(log(sum(exp(one["length"]) for one in branches)))


def _traversal(distributions: Distributions, generator: random.Random) -> Told:
    sketch = sampled(distributions, (3, 2, 2, 1))
    visits, path = post_order(sketch, generator)
    statuses = ["skipped"] * len(sketch.leaves)
    for one in visits:
        statuses[one["node"]] = "rejected"
    for node in path:
        statuses[node] = "accepted"
    statuses[0] = "root"
    top_down = generator.randint(0, len(path))
    data = {"visits": visits, "rescued": path[top_down:], "top_down": top_down}
    weights = {one["node"]: one["weight"] for one in visits if one["draw"] is not None}
    draws = {one["node"]: one["draw"] for one in visits if one["draw"] is not None}
    return Told(sketch, path, statuses, [Note("traversal", data)], "traversal", 4, weights, draws)


def _blocks(distributions: Distributions, generator: random.Random) -> Told:
    sketch = blocks(distributions, 3, 2, (3, 1))
    found = []
    for block in range(3):
        nodes = [node for node, leaf in enumerate(sketch.leaves) if node and leaf.block == block]
        found.append({"nodes": nodes, "depths": [2 * block + 1, 2 * block + 2]})
    return Told(sketch, *walk(sketch), [Note("blocks", {"blocks": found, "width": 2})], calls=3)


def _heads(distributions: Distributions, generator: random.Random) -> Told:
    """Every head has one list of tokens, whatever stands before it: level d offers the same tokens everywhere."""
    lists: list[list[tuple[str, float]]] = []
    for head in range(4):
        right = distributions.words.at(distributions.place + head)
        texts = generator.sample([text for text in distributions.words.others if text != right], 10)
        rank = generator.choice((0, 0, 0, 1, 1, 2, 10 if head else 1))
        texts = [right if place == rank else text for place, text in enumerate(texts)]
        sure = (0.7, 0.5, 0.35, 0.25)[head]
        lists.append([(text, rounded(sure * 0.6**place)) for place, text in enumerate(texts)])
    leaves, level = [distributions.root()], [0]
    for head, width in enumerate((4, 3, 2, 1)):
        born: list[int] = []
        for rank, parent in enumerate(level):
            for text, q in lists[head][: max(1, width - rank // 2)]:
                up = leaves[parent]
                right = up.right and text == distributions.words.at(distributions.place + head)
                p = generator.uniform(0.4, 0.95) if right else generator.uniform(0.001, 0.2)
                leaves.append(type(up)(parent, text, q, p, head + 1, right, up.value + log(q)))
                born.append(len(leaves) - 1)
        level = born[:8]
    sketch = _kept(leaves)
    path, statuses = walk(sketch)
    rows = [
        {"head": head + 1, "tokens": [distributions.words.ids[text] for text, _ in one], "texts": [text for text, _ in one],
         "probability": [q for _, q in one]}
        for head, one in enumerate(lists)
    ]  # fmt: skip
    notes = [Note("heads", {"heads": rows}), Note("typical", {"positions": _typical(sketch, statuses, generator, distributions)})]
    return Told(sketch, path, statuses, notes, "typical", 1, *_bars(notes[1]))


def _kept(leaves: list[Any]) -> Sketch:
    return Sketch(leaves, kept=len(leaves))


def _typical(sketch: Sketch, statuses: list[str], generator: random.Random, distributions: Distributions) -> list[dict[str, Any]]:
    found = []
    entropies: dict[int, float] = {}
    for node, (leaf, status) in enumerate(zip(sketch.leaves, statuses, strict=True)):
        if status not in ("accepted", "rejected"):
            continue
        entropy = entropies.setdefault(leaf.parent, generator.uniform(0.1, 3.0))
        bar = min(0.09, 0.3 * exp(-entropy))
        p = leaf.p if status == "accepted" else min(leaf.p, bar * generator.uniform(0.05, 0.95))
        found.append({
            "node": node, "token": distributions.words.ids[leaf.text], "text": leaf.text, "p": rounded(p),
            "threshold": rounded(bar), "entropy": rounded(entropy),
        })  # fmt: skip
    return found


def _bars(note: Note) -> tuple[dict[int, float], dict[int, float]]:
    return {one["node"]: one["threshold"] for one in note.data["positions"]}, {}


def _resolved(distributions: Distributions, generator: random.Random) -> Told:
    *told, note = story_blocks.resolved(distributions, generator)
    return Told(*told, [note])


def _searched(distributions: Distributions, generator: random.Random) -> Told:
    *told, note = story_blocks.searched(distributions, generator)
    return Told(*told, [note])


def _decays(distributions: Distributions, generator: random.Random) -> Told:
    """Three heads that forget slowly, evenly and at once, over a tree of thirteen nodes."""
    sketch = dynamic(distributions, 4, 3, 13, lambda level, mass: True, most=0)
    heads = []
    for name, layer, head, scale in (("slow", 0, 2, 0.01), ("middle", 2, 0, 0.15), ("fast", 4, 5, 2.0)):
        fade: list[float] = []
        for leaf in sketch.leaves[: sketch.kept]:
            above = fade[leaf.parent] if leaf.parent >= 0 else 0.0
            fade.append(round(above - scale * generator.uniform(0.4, 1.6), 3))
        heads.append({"name": name, "layer": layer, "head": head, "fade": fade})
    state, nodes = 5 * 6 * 64 * 64 * 4, sketch.kept
    data = {
        "heads": heads, "taps": 4, "layers": ["state"] * 3 + ["attention"] + ["state"] * 2, "state_bytes": state,
        "per_node_bytes": nodes * state, "replay_bytes": nodes * 5 * (512 + 6) * 4,
    }  # fmt: skip
    return Told(sketch, *walk(sketch), [_builder(sketch), Note("ssm_mask", data)], calls=4)


def _halves(distributions: Distributions, generator: random.Random) -> Told:
    *told, note = story_choices.last_state(distributions, generator)
    return Told(*told, [note])


def _arms(distributions: Distributions, generator: random.Random) -> Told:
    *told, note = story_choices.arms(distributions, generator)
    return Told(*told, [note])


TELLERS: dict[str, tuple[str, str, float, Teller]] = {
    "eagle2": ("EAGLE-2", "exact", 0.0, _dynamic),
    "ddd": ("Dynamic Depth Decoding", "exact", 0.0, _mass),
    "gto": ("GTO", "exact", 0.0, _reward),
    "traversal": ("Traversal Verification", "exact", 1.0, _traversal),
    "falcon": ("Falcon", "exact", 0.0, _blocks),
    "medusa": ("Medusa", "relaxed", 1.0, _heads),
    "deer": ("DEER", "exact", 0.0, _resolved),
    "diffuspec": ("DiffuSpec", "exact", 0.0, _searched),
    "stree": ("STree", "exact", 0.0, _decays),
    "owl": ("OWL", "exact", 0.0, _halves),
    "not_a_bandit": ("Not-a-Bandit", "exact", 0.0, _arms),
}


def story_trace(method: str, steps: int = 8, seed: int = 0) -> Trace:
    """A run of ``steps`` rounds of the method, with its notes."""
    title, exactness, temperature, teller = TELLERS[method]
    generator = random.Random(f"{seed} {method}")
    words = Words("text")
    prompt = tuple(PIECES.findall(PROMPT))
    found: list[Step] = []
    place = 0
    for index in range(steps):
        told = teller(Distributions(words, f"{seed} {index}", place), generator)
        found.append(_step(told, words, generator, index, place, len(prompt)))
        place += len(found[-1].emitted)
    output = tuple(token for step in found for token in step.emitted)
    plain = Baseline(tuple(generator.randint(38_000_000, 46_000_000) for _ in output), 61_000_000, exactness == "exact")
    counted = wire.rounded(metrics.summarise(tuple(found), "budget", 63_000_000, plain))
    run = Run(
        modality="text", target="smollm2-135m-instruct", method=method, title=title, exactness=exactness,
        parameters={"nodes": NODES, "depth": DEPTH}, sampling=Sampling(temperature), device="cpu", dtype="float32",
        tier="eager", prompt=PROMPT, prompt_pieces=prompt, max_new_tokens=place, draft="a drafter",
        recorded_at="2026-05-11T10:00:00Z", warnings=("This run is a sample made for tests.",),
        bound="typical acceptance" if exactness == "relaxed" else "",
    )  # fmt: skip
    text = "".join(piece for step in found for piece in step.pieces)
    return Trace(run, tuple(found), End("budget", output, text, 63_000_000, counted, "", plain))


def _step(told: Told, words: Words, generator: random.Random, index: int, place: int, prompt: int) -> Step:
    nodes = told.sketch.nodes(words, told.statuses, thresholds=told.thresholds or {}, draws=told.draws or {})
    said = words.at(place + len(told.path))
    bonus = Bonus(told.path[-1] if told.path else 0, words.ids[said], said, rounded(generator.uniform(0.3, 0.9)))
    emitted = [nodes[node] for node in told.path]
    scored = told.sketch.kept - 1
    top = (Candidate(bonus.token, bonus.text, bonus.p or 0.0),)
    times = (6_000_000 * told.calls, 44_000_000 + 700_000 * scored, 400_000, 300_000, 300_000)
    return Step(
        index, prompt - 1 + place, nodes, tuple(told.path), bonus, (*(one.token for one in emitted), bonus.token),
        (*(one.text for one in emitted), bonus.text), told.rule, Nanoseconds(*times), None, told.calls, scored,
        scored + 1, (TargetRow(bonus.parent, top),), tuple(told.notes),
    )  # fmt: skip


if __name__ == "__main__":
    asked = sys.argv[2:] + ["eagle2", "8"][len(sys.argv[2:]) :]
    store.write(story_trace(asked[0], int(asked[1])), sys.argv[1])
    print(sys.argv[1])
