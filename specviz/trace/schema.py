"""Schema of a run as frozen plain data: the one contract between the engine and everything that shows it.

A trace file holds one ``run`` line, then ``step`` lines, then an ``end`` line. Nothing here knows torch, plotly or gradio.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 1

# Node 0 is the last committed token, which nobody judges, hence its own word.
ROOT = "root"
ACCEPTED = "accepted"
RELAXED = "relaxed"
REJECTED = "rejected"
SKIPPED = "skipped"
PRUNED = "pruned"
RESAMPLED = "resampled"
STATUSES = (ROOT, ACCEPTED, RELAXED, REJECTED, SKIPPED, PRUNED, RESAMPLED)

RULES = ("none", "greedy", "match", "ratio", "without_replacement", "traversal", "typical", "relaxed", "local")
CUTS = ("eos", "budget", "context")
REASONS = ("eos", "budget", "context", "cancelled", "time_limit", "error", "out_of_memory")
EXACTNESS = ("exact", "relaxed")
MODALITIES = ("text", "vision_language", "image")
PHASES = ("draft", "verify", "judge", "commit", "host")


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a draft tree.

    ``q`` is the drafter's probability of this token given its parent, None where the drafter has none (a copied token). The
    accept rule used it as it stands unless the step is ``certain``: then it is the drafter's confidence and no more. ``p`` is
    the target's probability, None where the target was never asked. Both are after temperature, top-k and top-p; at
    temperature 0, where the rule looks only at the largest logit, both are the plain softmax so that there is something to
    compare. ``draw`` is the random number in [0, 1) that was held against ``threshold``; both None when the rule draws
    nothing per node. ``grid`` is (row, column) in an image run.
    """

    parent: int
    token: int
    text: str
    q: float | None = None
    p: float | None = None
    status: str = SKIPPED
    threshold: float | None = None
    draw: float | None = None
    grid: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token the target ranked high at some node: id, text, probability in the sense of ``Node.p``."""

    token: int
    text: str
    p: float


@dataclass(frozen=True, slots=True)
class TargetRow:
    """What the target would have said after ``node``: its best few tokens, likeliest first. Only for visited nodes."""

    node: int
    top: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Bonus:
    """The target's own token that ends a step, hanging from the node where the walk ended.

    ``source`` is "target" when drawn from p itself and "residual" when drawn from what rejection left over.
    """

    parent: int
    token: int
    text: str
    p: float | None
    source: str = "target"
    grid: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Nanoseconds:
    """Where the time of one step went, in nanoseconds. ``host`` is the rest of the step's wall time but for ``aside``:
    that went into what is only shown, and is in no total."""

    draft: int = 0
    verify: int = 0
    judge: int = 0
    commit: int = 0
    host: int = 0
    aside: int = 0

    @property
    def total(self) -> int:
        return self.draft + self.verify + self.judge + self.commit + self.host


@dataclass(frozen=True, slots=True)
class Note:
    """A method's own story about one step. ``type`` names the view that draws it; ``data`` is plain JSON."""

    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One round: root, drafted tree, one target pass, verdict, commit, bonus token.

    ``position`` is the root's absolute position, which is also the number of tokens in the target's cache before the pass.
    ``path`` lists the accepted nodes from the root's child downwards. ``emitted`` are the tokens added to the output: the
    path, then the bonus, cut at end-of-sequence, budget or context; ``pieces`` is the text each of them adds.
    ``verified`` counts the drafted nodes the target scored, ``padded`` the rows of its pass (root and padding included).
    ``passes`` is how often the target was run: more than once where rejected places of a block are drawn again one by one.
    On the path a node that was *resampled* carries its new token. ``certain`` says that the guesses were chosen, not drawn:
    a rule that weighs p against q took each of them as a point mass, whatever confidence stands in ``Node.q``.
    """

    index: int
    position: int
    nodes: tuple[Node, ...]
    path: tuple[int, ...]
    bonus: Bonus | None
    emitted: tuple[int, ...]
    pieces: tuple[str, ...]
    rule: str
    time: Nanoseconds
    cut: str | None = None
    draft_calls: int = 0
    verified: int = 0
    padded: int = 1
    rows: tuple[TargetRow, ...] = ()
    notes: tuple[Note, ...] = ()
    passes: int = 1
    certain: bool = False

    @property
    def depths(self) -> tuple[int, ...]:
        """Depth of every node; the root is 0."""
        found: list[int] = []
        for node in self.nodes:
            found.append(0 if node.parent < 0 else found[node.parent] + 1)
        return tuple(found)

    @property
    def accepted(self) -> int:
        """Drafted tokens that entered the output; bonus, tokens drawn again and tokens cut off are not counted."""
        kept = self.path[: len(self.emitted)]
        return sum(self.nodes[number].status != RESAMPLED for number in kept)

    @property
    def overruled(self) -> bool:
        """Whether the bonus replaces rejected guesses: where the walk ended, drafted children were judged and failed."""
        failed = (REJECTED, RESAMPLED)
        at = None if self.bonus is None else self.bonus.parent
        return at is not None and any(node.parent == at and node.status in failed for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 keep every token.

    ``generation`` is the number of earlier runs that taught the drafter: its draws are keyed by it as by the seed.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Codebook:
    """The picture codes of an image run as a map for the eye.

    ``places`` is base64 of two little-endian 16-bit numbers a code: its first two principal components, stretched to the
    whole range. ``colours`` is base64 of red, green and blue, a byte each: the mean colour of a picture of that code alone.
    """

    size: int
    places: str
    colours: str


@dataclass(frozen=True, slots=True)
class Run:
    """What was asked, of what, on what. ``parameters`` are the method's; ``warnings`` are shown on screen, never hidden.

    ``grid`` is (rows, columns) of an image run, ``guidance`` how hard it follows its prompt (1: not at all harder).
    """

    modality: str
    target: str
    method: str
    title: str
    exactness: str
    parameters: Mapping[str, Any]
    sampling: Sampling
    device: str
    dtype: str
    tier: str
    prompt: str
    prompt_pieces: tuple[str, ...]
    max_new_tokens: int
    bound: str = ""
    draft: str = ""
    chat_template: bool = False
    tokenizer_hash: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""
    recorded_at: str = ""
    warnings: tuple[str, ...] = ()
    grid: tuple[int, int] | None = None
    guidance: float | None = None
    codebook: Codebook | None = None
    version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a run first left its baseline: output position, and the gap between the baseline's two best logits there."""

    position: int
    gap: float | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """The target's own autoregressive run on the same prompt, seed, tier and process. ``token_ns`` is one entry a token."""

    token_ns: tuple[int, ...]
    prefill_ns: int
    equal: bool
    first_divergence: Divergence | None = None

    @property
    def total_ns(self) -> int:
        return sum(self.token_ns)


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended. ``metrics`` is what ``trace.metrics.summarise`` makes of the steps.

    ``picture`` is what an image run drew, whole or so far, as base64 of a PNG.
    """

    reason: str
    output_ids: tuple[int, ...]
    text: str
    prefill_ns: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""
    baseline: Baseline | None = None
    picture: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """One run, whole or so far. ``end`` is None while it is going on."""

    run: Run
    steps: tuple[Step, ...]
    end: End | None = None

    def show(self, step: int | None = None, *, height: int = 680) -> Any:
        """The stage in a notebook, ``height`` pixels high: at ``step``, counted from 0, or playing from the first one.

        Raises BadInput when there is no such step.
        """
        # The stage reads traces, and a trace knows nothing of it until somebody asks to see one: hence no import above.
        return importlib.import_module("specviz.viewer.replay").frame(self, step, height)

    def _repr_html_(self) -> str:
        """What a notebook shows of a trace."""
        shown: str = self.show()._repr_html_()
        return shown
