"""Realistic recorded runs for tests that need one: no model, any length, any method's notes, repeatable by seed.

From a test: ``sample_trace(steps=14, method="stand")``; ``lines(trace)`` is what the viewer reads.
"""

from __future__ import annotations

import random
import re
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specviz.trace import metrics, schema, store
from specviz.trace.schema import (
    Baseline,
    Bonus,
    Candidate,
    Divergence,
    End,
    Nanoseconds,
    Node,
    Note,
    Run,
    Sampling,
    Step,
    TargetRow,
    Trace,
)
from tests.support.traces.recordings import said

TEXT = (
    "The sky is blue because the air scatters short waves of light more than long ones. Sunlight looks white, but it "
    "is a mix of many colours. When it enters the atmosphere, it meets gas molecules that are much smaller than the "
    "waves themselves. Blue light is scattered in every direction, so it reaches your eyes from the whole sky.\n\n"
    "At sunset the light has to travel through more air, so most of the blue is gone before it arrives, and what is "
    'left is orange and red. The line was: {"name": "Ada", "born": 1815}. It isn\'t magic — it\'s physics, naïve as '
    "that may sound. "
)
OTHERS = (
    " a| an| this| that| of| in| to| from| with| and| or| which| when| light| air| sun| blue| red| water| colour| more"
    '| less|,|.|\n| very| bright| scattered| reflected| appears| seems| looks| because| due| "|{|}|\\xF0| 日| 🌅'
    "|ing|ed|s"
).split("|")
PIECES = re.compile(r" ?[A-Za-zïé']+| ?\d+|\n| ?[^\w\s]+|\s")
CHAINS = ("prompt_lookup", "speculative_sampling")
GRID_WIDTH = 32


@dataclass(frozen=True)
class Kind:
    """What distinguishes the sample runs of one method. ``sampled`` rules hold a draw against a threshold."""

    title: str
    rule: str
    exactness: str = "exact"
    temperature: float = 0.0
    parameters: dict[str, Any] = field(default_factory=dict)
    bound: str = ""
    draft: str = ""

    @property
    def sampled(self) -> bool:
        return self.rule in ("ratio", "relaxed")


KINDS = {
    "autoregressive": Kind("Autoregressive", "none", temperature=0.8),
    "prompt_lookup": Kind("Prompt lookup", "greedy", parameters={"ngram": 3, "length": 10}),
    "token_recycling": Kind("Token recycling", "greedy", parameters={"nodes": 24, "successors": 8}),
    "stand": Kind("STAND", "match", temperature=0.8, parameters={"nodes": 24, "order": 4}),
    "speculative_sampling": Kind("Speculative sampling", "ratio", "exact", 0.8, {"length": 8}, draft="smollm2-draft"),
    "relaxed": Kind("Relaxed acceptance", "relaxed", "relaxed", 0.8, {"delta": 0.1}, "total variation at most 0.1"),
}


class Words:
    """A small vocabulary: every piece of text that a sample uses has its own token id."""

    def __init__(self, modality: str) -> None:
        self.image = modality == "image"
        self.text = [f"#{17 * n % 4096}" for n in range(1024)] if self.image else PIECES.findall(TEXT)
        self.others = [f"#{n}" for n in range(0, 4096, 61)] if self.image else OTHERS
        self.ids = {piece: 260 + 37 * n for n, piece in enumerate(dict.fromkeys(("\n", *self.text, *self.others)))}

    def at(self, place: int) -> str:
        """The piece that the target says at this output position; the text starts again when it ends."""
        return self.text[place % len(self.text)] if place >= 0 else "\n"

    def grid(self, place: int) -> tuple[int, int] | None:
        return divmod(place, GRID_WIDTH) if self.image and place >= 0 else None


@dataclass
class Round:
    """A tree around what the target is going to say at ``place``, judged by how far the draft agrees with it."""

    generator: random.Random
    words: Words
    method: str
    index: int
    place: int
    position: int
    most: int
    """Most nodes, root included."""

    @property
    def kind(self) -> Kind:
        return KINDS[self.method]

    def step(self, cut: str | None, with_notes: bool) -> Step:
        """The round as a record; ``cut`` drops its last token where there is more than one."""
        nodes, path = self.tree()
        bonus = self.bonus(nodes, path)
        said = [*(nodes[node] for node in path), bonus][: -1 if cut and path else None]
        scored = sum(node.status != "pruned" for node in nodes) - 1
        return Step(
            self.index, self.position, tuple(nodes), tuple(path), bonus, tuple(one.token for one in said),
            tuple(one.text for one in said), self.kind.rule if scored else "none", self.time(scored), cut,
            min(scored, 1), scored, 1 + scored + (-1 - scored) % 8 if scored else 1, self.rows((0, *path)),
            self.notes(nodes) if with_notes else (),
        )  # fmt: skip

    def tree(self) -> tuple[list[Node], list[int]]:
        """The nodes and the accepted path. Every fourth round the whole of a branch is accepted."""
        text = self.words.at(self.place - 1)
        nodes = [Node(-1, self.words.ids[text], text, status="root", grid=self.words.grid(self.place - 1))]
        if self.method == "autoregressive":
            return nodes, []
        agreed = min(self.generator.choice((0, 1, 1, 2, 2, 3, 3, 4, 5)), self.most - 2)
        path = list(range(1, agreed + 1))
        for depth in range(agreed):
            status = "relaxed" if self.method == "relaxed" and depth == agreed - 1 else "accepted"
            nodes.append(self.node(depth, self.words.at(self.place + depth), depth, status))
        stopped = self.index % 4 != 3 or not agreed
        if stopped:
            verdict = "resampled" if self.kind.sampled else "rejected"
            nodes.append(self.node(agreed, self.other(agreed), agreed, verdict))
        if self.method not in CHAINS or stopped:
            self.grow(nodes, agreed, stopped)
        return nodes, path

    def grow(self, nodes: list[Node], agreed: int, stopped: bool) -> None:
        """Fill up with what was drafted around the path: losing siblings, their children, nodes never sent."""
        size = self.generator.randint(min(8, self.most), self.most)
        depths = [*range(agreed + 1), *([agreed + 1] if stopped else [])]
        while len(nodes) < size:
            sent = [n for n, node in enumerate(nodes) if node.status != "pruned"]
            free = [n for n in sent if depths[n] < 8 and (stopped or n != agreed)]
            parent = len(nodes) - 1 if self.method in CHAINS else self.generator.choice(free)
            status = "rejected" if parent <= agreed else "skipped"
            if parent > agreed and self.method not in CHAINS and self.generator.random() < 0.25:
                status = "pruned"
            taken = {node.text for node in nodes if node.parent == parent}
            nodes.append(self.node(parent, self.other(depths[parent], taken), depths[parent], status))
            depths.append(depths[parent] + 1)

    def node(self, parent: int, text: str, depth: int, status: str) -> Node:
        """A drafted token with numbers that fit its status."""
        kept = status in ("accepted", "relaxed")
        p = rounded(self.generator.uniform(0.3, 0.98) if status == "accepted" else self.generator.betavariate(0.5, 4))
        q = min(0.999, max(0.01, p * self.generator.uniform(0.6, 1.5) if kept else p / self.generator.uniform(0.1, 0.7)))
        threshold = draw = None
        if self.kind.sampled and status in ("accepted", "relaxed", "rejected", "resampled"):
            threshold = rounded(min(1.0, p / q) if status != "relaxed" else min(1.0, p / q + 0.1))
            luck = self.generator.uniform(0, 0.999)
            draw = rounded(threshold * luck if kept else threshold + (0.9999 - threshold) * luck)
        return Node(
            parent, self.words.ids[text], text, None if self.method == "prompt_lookup" else rounded(q),
            None if status == "pruned" else p, status, threshold, draw, self.words.grid(self.place + depth),
        )  # fmt: skip

    def other(self, depth: int, taken: Container[str] = ()) -> str:
        """Some piece that the target does not say there and no sibling has."""
        right = self.words.at(self.place + depth)
        return self.generator.choice([piece for piece in self.words.others if piece != right and piece not in taken])

    def bonus(self, nodes: list[Node], path: list[int]) -> Bonus:
        place = self.place + len(path)
        text = self.words.at(place)
        source = "residual" if any(node.status == "resampled" for node in nodes) else "target"
        p = rounded(self.generator.uniform(0.3, 0.95))
        return Bonus(path[-1] if path else 0, self.words.ids[text], text, p, source, self.words.grid(place))

    def rows(self, visited: tuple[int, ...]) -> tuple[TargetRow, ...]:
        """The target's best five tokens after each visited node."""
        return tuple(TargetRow(node, self.candidates(depth)) for depth, node in enumerate(visited))

    def candidates(self, depth: int) -> tuple[Candidate, ...]:
        left, found = 1.0, []
        right = self.words.at(self.place + depth)
        rest = self.generator.sample([piece for piece in self.words.others if piece != right], 4)
        for text in (right, *rest):
            p = left * self.generator.uniform(0.5, 0.9)
            left -= p
            found.append(Candidate(self.words.ids[text], text, rounded(p)))
        return tuple(sorted(found, key=lambda one: -one.p))

    def time(self, scored: int) -> Nanoseconds:
        drafting = {"speculative_sampling": 24_000_000, "autoregressive": 0}.get(self.method, 1_400_000)
        means = (drafting, 40_000_000 + 450_000 * scored, 420_000, 310_000, 260_000)
        return Nanoseconds(*(max(0, int(self.generator.gauss(mean, mean / 20))) for mean in means))

    def notes(self, nodes: list[Node]) -> tuple[Note, ...]:
        """The note that this method's drafter writes, in the shape of the real one."""
        told = {
            "prompt_lookup": self.copy_note, "token_recycling": self.successors_note, "stand": self.ngram_note,
            "speculative_sampling": self.overlap_note,
        }.get(self.method)  # fmt: skip
        return (told(nodes),) if told else ()

    def copy_note(self, nodes: list[Node]) -> Note:
        long = min(3, self.position)
        start = max(0, self.position - 2 * long)
        suffix = {"suffix_start": self.position - long + 1, "suffix_length": long}
        return Note("copy", {**suffix, "source": start, "length": len(nodes) - 1})

    def named(self, count: int) -> dict[str, list[Any]]:
        texts = self.generator.sample(self.words.others, count)
        return {"tokens": [self.words.ids[text] for text in texts], "texts": texts}

    def inner(self, nodes: list[Node]) -> list[int]:
        return sorted({node.parent for node in nodes[1:]})[:12]

    def successors_note(self, nodes: list[Node]) -> Note:
        rows = []
        for parent in self.inner(nodes):
            used = min(8, sum(node.parent == parent for node in nodes))
            row = {"node": parent, "token": nodes[parent].token, "text": nodes[parent].text}
            rows.append({**row, **self.named(8), "used": used})
        return Note("successors", {"rows": rows, "updated": len(nodes) * 8})

    def ngram_note(self, nodes: list[Node]) -> Note:
        rows = []
        for parent in self.inner(nodes):
            probability = sorted((rounded(self.generator.random() / 2) for _ in range(4)), reverse=True)
            perturbed = sorted((rounded(self.generator.gauss(-1, 1)) for _ in range(4)), reverse=True)
            rows.append({
                "node": parent, "order": self.generator.randint(1, 4), **self.named(4), "probability": probability,
                "perturbed": perturbed, "picked": min(4, sum(node.parent == parent for node in nodes)),
            })  # fmt: skip
        return Note("ngram_rows", {"rows": rows, "entries": 1200 + 31 * self.index})

    def overlap_note(self, nodes: list[Node]) -> Note:
        found = []
        for parent in self.inner(nodes)[:6]:
            p, q = ([rounded(self.generator.random() / 8) for _ in range(8)] for _ in range(2))
            overlap = rounded(sum(map(min, p, q)) + 0.2)
            found.append({"node": parent, **self.named(8), "p": p, "q": q, "overlap": overlap})
        return Note("overlap", {"positions": found})


def rounded(number: float) -> float:
    """To the five significant digits that a trace file keeps."""
    return float(f"{number:.5g}")


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
    output, text = said(steps)
    plain = None
    if baseline:
        times = tuple(generator.randint(38_000_000, 46_000_000) for _ in output)
        apart = Divergence(len(output) // 2, 0.03125) if run.exactness == "relaxed" and output else None
        plain = Baseline(times, 61_000_000, apart is None, apart)
    counted = schema.rounded(metrics.summarise(steps, reason, 63_000_000, plain))
    return End(reason, output, text, 63_000_000, counted, "", plain)
