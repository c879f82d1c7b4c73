"""Schema of a run as frozen plain data: the one contract between the engine and everything that shows it.

A trace file holds one ``run`` line, then ``step`` lines, then an ``end`` line. Nothing here knows torch, plotly or gradio.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

SCHEMA_VERSION = 1
MAX_STEPS = 20_000
MAX_NODES = 2048
"""Nodes of one step, the root and the pruned ones included."""
MAX_PRUNED = 96
"""Pruned nodes that travel with a step, the best of them; a note of its growth counts them all."""
MAX_TEXT = 4096
"""Characters of one token's text, and of any text and key inside free JSON."""
EXACT = 2**53 - 1
"""The largest whole number that every reader of JSON keeps exactly."""

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
SOURCES = ("target", "residual")


@dataclass(frozen=True, slots=True)
class Limit:
    """Bounds of a value in a trace file, of which the JSON Schema is made (``trace.json_schema``).

    ``least`` and ``most`` bound a number, the length of a text, or the entries of a list or a mapping; ``words`` are the only
    values that a text may have. ``about`` describes the value.
    """

    least: float | None = None
    most: float | None = None
    words: tuple[str, ...] = ()
    about: str = ""


Token = Annotated[int, Limit(0, 2**31 - 1, about="A token id of the target's vocabulary.")]
Text = Annotated[str, Limit(most=MAX_TEXT, about="Text of one token. It comes from a model: treat it as untrusted.")]
NodeIndex = Annotated[int, Limit(0, MAX_NODES - 1, about="An index into nodes.")]
Count = Annotated[int, Limit(0, EXACT)]
Probability = Annotated[float, Limit(0, 1)]
Seconds = Annotated[float, Limit(0, 1e9)]
Amount = Annotated[float, Limit(0, 1e12)]
Status = Annotated[str, Limit(words=STATUSES)]
Cut = Annotated[str, Limit(words=CUTS)]
Reason = Annotated[str, Limit(words=REASONS)]
Grid = Annotated[
    tuple[Annotated[int, Limit(0, 65_535)], Annotated[int, Limit(0, 65_535)]], Limit(about="Row and column in an image run.")
]
Setting = Annotated[str, Limit(most=4096)] | bool | Annotated[float, Limit(-EXACT, EXACT)] | None


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

    parent: Annotated[int, Limit(-1, MAX_NODES - 1)]
    """An earlier node, -1 for the root."""
    token: Token
    text: Text
    q: Probability | None = None
    """The drafter's probability; null for a point mass."""
    p: Probability | None = None
    """The target's probability; null where the target was not asked."""
    status: Status = SKIPPED
    threshold: Annotated[float, Limit(-1e9, 1e9)] | None = None
    """What the draw was held against."""
    draw: Probability | None = None
    """The random number in [0, 1)."""
    grid: Grid | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token the target ranked high at some node: id, text, probability in the sense of ``Node.p``."""

    token: Token
    text: Text
    p: Probability


@dataclass(frozen=True, slots=True)
class TargetRow:
    """What the target would have said after ``node``: its best few tokens, likeliest first. Only for visited nodes."""

    node: NodeIndex
    top: Annotated[tuple[Candidate, ...], Limit(most=64)]


@dataclass(frozen=True, slots=True)
class Bonus:
    """The target's own token that ends a step, hanging from the node where the walk ended.

    ``source`` is "target" when drawn from p itself and "residual" when drawn from what rejection left over.
    """

    parent: NodeIndex
    token: Token
    text: Text
    p: Probability | None
    source: Annotated[str, Limit(words=SOURCES)] = "target"
    grid: Grid | None = None


@dataclass(frozen=True, slots=True)
class Nanoseconds:
    """Where the time of one step went, in nanoseconds. ``host`` is the rest of the step's wall time but for ``aside``:
    that went into what is only shown, and is in no total."""

    draft: Count = 0
    verify: Count = 0
    judge: Count = 0
    commit: Count = 0
    host: Count = 0
    aside: Count = 0

    @property
    def total(self) -> int:
        return self.draft + self.verify + self.judge + self.commit + self.host


@dataclass(frozen=True, slots=True)
class Note:
    """A method's own account of one step as it stands in a trace.

    ``type`` names the panel that draws it, ``data`` is plain JSON. Fields of known types are those of ``trace.notes``; a type
    that a newer version wrote is kept as it is.
    """

    type: Annotated[str, Limit(1, 64)]
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

    index: Annotated[int, Limit(0, MAX_STEPS - 1)]
    """Steps before this one."""
    position: Annotated[int, Limit(0, 100_000_000)]
    """Absolute position of the root, which is also the length of the target's cache before the pass."""
    nodes: Annotated[tuple[Node, ...], Limit(1, MAX_NODES)]
    """The draft tree, root first, parents before children."""
    path: Annotated[tuple[NodeIndex, ...], Limit(most=MAX_NODES)]
    """Accepted nodes from the root's child downwards."""
    bonus: Bonus | None
    emitted: Annotated[tuple[Token, ...], Limit(most=MAX_NODES + 1)]
    """Tokens added to the output: path, then bonus, cut at the end."""
    pieces: Annotated[tuple[Text, ...], Limit(most=MAX_NODES + 1)]
    rule: Annotated[str, Limit(words=RULES)]
    time: Nanoseconds
    cut: Cut | None = None
    draft_calls: Count = 0
    verified: Annotated[int, Limit(0, MAX_NODES - 1)] = 0
    """Drafted nodes the target scored."""
    padded: Annotated[int, Limit(1, 1_000_000)] = 1
    """Rows of the target's pass, root and padding included."""
    rows: Annotated[tuple[TargetRow, ...], Limit(most=MAX_NODES)] = ()
    notes: Annotated[tuple[Note, ...], Limit(most=16)] = ()
    passes: Annotated[int, Limit(1, 100_000)] = 1
    """Runs of the target in this step; 1 where it is missing."""
    certain: bool = False
    """Guesses were chosen, not drawn: the rule took each as a point mass, and q is confidence alone."""

    @property
    def depths(self) -> tuple[int, ...]:
        """Depth of every node; the root is 0."""
        depths: list[int] = []
        for node in self.nodes:
            depths.append(0 if node.parent < 0 else depths[node.parent] + 1)
        return tuple(depths)

    @property
    def accepted(self) -> int:
        """Drafted tokens that entered the output; bonus, tokens drawn again and tokens cut off are not counted."""
        emitted_path = self.path[: len(self.emitted)]
        return sum(self.nodes[number].status != RESAMPLED for number in emitted_path)

    @property
    def pruned(self) -> int:
        """Candidates cut before the target's pass, of which the best travel as nodes; a note of the growth counts all."""
        carried = sum(node.status == PRUNED for node in self.nodes)
        return max(carried, (self.considered or 0) - (len(self.nodes) - 1 - carried))

    @property
    def considered(self) -> int | None:
        """Drafted candidates as a note of the growth counts them; None without one."""
        counts = [count for note in self.notes if isinstance(count := note.data.get("considered"), int)]
        return max(counts, default=None)

    @property
    def overruled(self) -> bool:
        """Whether the bonus replaces rejected guesses: where the walk ended, drafted children were judged and failed."""
        failed = (REJECTED, RESAMPLED)
        end_node = None if self.bonus is None else self.bonus.parent
        return end_node is not None and any(node.parent == end_node and node.status in failed for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 keep every token.

    ``generation`` is the number of earlier runs that taught the drafter: its draws are keyed by it as by the seed.
    """

    temperature: Annotated[float, Limit(0, 100)] = 0.0
    top_k: Annotated[int, Limit(0, 2**31 - 1)] = 0
    top_p: Probability = 1.0
    seed: Annotated[int, Limit(-(2**63), 2**64 - 1)] = 0
    generation: Count = 0
    """Earlier runs that taught the drafter, 0 where absent: its draws are keyed by it as by the seed."""


@dataclass(frozen=True, slots=True)
class Codebook:
    """The picture codes of an image run as a map for the eye.

    ``places`` is base64 of two little-endian 16-bit numbers a code: its first two principal components, stretched to the
    whole range. ``patches`` is base64 of [code, row, column, rgb], square, a byte each: the mean of the cells that hold the
    code in pictures of the image model's training data; empty where nobody has counted. ``colours`` is base64 of red, green
    and blue, a byte each: the mean of the patch, without patches the mean colour of a picture of that code alone.
    """

    size: Annotated[int, Limit(1, 65_536)]
    places: Annotated[str, Limit(most=400_000)]
    colours: Annotated[str, Limit(most=300_000)]
    patches: Annotated[str, Limit(most=400_000)] = ""


@dataclass(frozen=True, slots=True)
class Run:
    """What was asked, of what, on what. ``parameters`` are the method's; ``warnings`` are shown on screen, never hidden.

    ``grid`` is (rows, columns) of an image run, ``guidance`` how hard it follows its prompt (1: not at all harder).
    """

    modality: Annotated[str, Limit(words=MODALITIES)]
    target: Annotated[str, Limit(most=1024)]
    method: Annotated[str, Limit(1, 128)]
    title: Annotated[str, Limit(most=256)]
    exactness: Annotated[str, Limit(words=EXACTNESS)]
    parameters: Annotated[Mapping[str, Setting], Limit(most=64)]
    sampling: Sampling
    device: Annotated[str, Limit(most=256)]
    dtype: Annotated[str, Limit(most=64)]
    tier: Annotated[str, Limit(most=64)]
    prompt: Annotated[str, Limit(most=1_000_000)]
    prompt_pieces: Annotated[tuple[Text, ...], Limit(most=262_144)]
    max_new_tokens: Annotated[int, Limit(0, 1_000_000)]
    bound: Annotated[str, Limit(most=4096)] = ""
    draft: Annotated[str, Limit(most=1024)] = ""
    chat_template: bool = False
    tokenizer_hash: Annotated[str, Limit(most=256)] = ""
    libraries: Annotated[Mapping[str, Annotated[str, Limit(most=256)]], Limit(most=64)] = field(default_factory=dict)
    machine: Annotated[str, Limit(most=1024)] = ""
    recorded_at: Annotated[str, Limit(most=64)] = ""
    warnings: Annotated[tuple[Annotated[str, Limit(most=4096)], ...], Limit(most=64)] = ()
    grid: Grid | None = None
    guidance: Annotated[float, Limit(0, 1000)] | None = None
    codebook: Codebook | None = None
    version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a run first left its baseline.

    ``position`` counts the output's tokens, ``gap`` lies between the baseline's two best logits there.
    """

    position: Annotated[int, Limit(0, 1_000_000)]
    gap: Annotated[float, Limit(0, 1e9)] | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """The target's own autoregressive run.

    It had the same prompt, seed, tier and process. ``token_ns`` is one entry a token.
    """

    token_ns: Annotated[tuple[Count, ...], Limit(most=1_000_000)]
    prefill_ns: Count
    equal: bool
    first_divergence: Divergence | None = None
    pieces: Annotated[tuple[Text, ...], Limit(most=1_000_000)] = ()
    """Its text by token from the first divergence on; absent where it wrote the same, or was recorded without."""
    picture: Annotated[str, Limit(most=1_000_000)] = ""
    """What the baseline of an image run drew, base64 of a PNG; absent where that is the run's own picture."""
    capture_ns: Count = 0
    """Time in which passes were captured as CUDA graphs: in no other time."""

    @property
    def total_ns(self) -> int:
        return sum(self.token_ns)


class PhaseSeconds(TypedDict, total=False):
    """Seconds of a run by phase; ``total`` leaves out the prefill, and capturing, which there may be none of."""

    draft: Seconds
    verify: Seconds
    judge: Seconds
    commit: Seconds
    host: Seconds
    total: Seconds
    prefill: Seconds
    capture: Seconds


class PhaseShares(TypedDict, total=False):
    """Fractions of a run's time by phase."""

    draft: Probability | None
    verify: Probability | None
    judge: Probability | None
    commit: Probability | None
    host: Probability | None


class Metrics(TypedDict, total=False):
    """What the steps add up to. Further keys may follow; a number without meaning is null."""

    tau: Amount | None
    steps: Count
    passes: Count
    emitted: Count
    accepted: Count
    accepted_by_depth: Annotated[list[Probability | None], Limit(most=MAX_NODES)]
    histogram: Annotated[list[Count], Limit(most=MAX_NODES + 1)]
    node_efficiency: Amount | None
    cut_steps: Count
    draft_calls: Count
    verified: Count
    reason: Reason
    seconds: PhaseSeconds
    shares: PhaseShares
    tokens_per_second: Amount | None
    baseline_tokens_per_second: Amount | None
    speedup: Amount | None
    predicted_speedup: Amount | None
    first_divergence: Divergence | None


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended. ``metrics`` is what ``trace.metrics.summarise`` makes of the steps.

    ``picture`` is what an image run drew, whole or so far, as base64 of a PNG.
    """

    reason: Reason
    output_ids: Annotated[tuple[Token, ...], Limit(most=1_000_000)]
    text: Annotated[str, Limit(most=1_000_000)]
    prefill_ns: Count
    metrics: Annotated[Mapping[str, Any], Metrics] = field(default_factory=dict)
    message: Annotated[str, Limit(most=65_536)] = ""
    baseline: Baseline | None = None
    picture: Annotated[str, Limit(most=1_000_000)] = ""
    """What an image run drew: base64 of a PNG."""
    captures: Count = 0
    """Passes captured as CUDA graphs in this run. The next run of the model replays them."""
    capture_ns: Count = 0
    """Time that took: in no step and not in the prefill."""
    busy: Annotated[str, Limit(most=4096)] = ""
    """What a reader of the times has to know where other programs kept the run waiting."""


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
        html: str = self.show()._repr_html_()
        return html
