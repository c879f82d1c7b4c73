"""Schema of a run as frozen plain data: the one contract between the engine and every view.

A trace file holds one ``run`` line, then ``step`` lines, then an ``end`` line. Nothing here imports torch, plotly or gradio.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Annotated, Any, Self, TypedDict

from msgspec import Meta, Struct, structs

SCHEMA_VERSION = 2
MAX_STEPS = 20_000
MAX_NODES = 2048
"""Maximum number of nodes in one step, the root and pruned nodes included."""
MAX_PRUNED = 96
"""Maximum number of pruned nodes recorded with a step, the best of them; a growth note counts them all."""
MAX_TEXT = 4096
"""Maximum length in characters of one token's text, and of any text or key inside free JSON."""
EXACT = 2**53 - 1
"""The largest integer that every JSON reader represents exactly."""

# Node 0 is the last committed token, which no rule judges, hence a status of its own.
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
REASONS = (*CUTS, "cancelled", "time_limit", "error", "out_of_memory")
PHASES = ("draft", "verify", "judge", "commit", "host")


def one_of(*words: str) -> Meta:
    """Return the constraint that a text is one of these words."""
    return Meta(pattern=rf"^(?:{'|'.join(words)})$(?!\n)")


Token = Annotated[int, Meta(ge=0, le=2**31 - 1, description="A token id of the target's vocabulary.")]
Text = Annotated[str, Meta(max_length=MAX_TEXT, description="Text of one token. It comes from a model: treat it as untrusted.")]
NodeIndex = Annotated[int, Meta(ge=0, le=MAX_NODES - 1, description="An index into nodes.")]
Count = Annotated[int, Meta(ge=0, le=EXACT)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Amount = Annotated[float, Meta(ge=0, le=1e12)]
Place = Annotated[int, Meta(ge=0, le=65_535)]
Grid = Annotated[tuple[Place, Place], Meta(description="Row and column in an image run.")]
NoteType = Annotated[str, Meta(min_length=1, max_length=64)]
Word = Annotated[str, Meta(max_length=64)]
Name = Annotated[str, Meta(max_length=256)]
Line = Annotated[str, Meta(max_length=1024)]
Paragraph = Annotated[str, Meta(max_length=4096)]
Document = Annotated[str, Meta(max_length=1_000_000)]
Setting = Paragraph | bool | Annotated[int, Meta(ge=-EXACT, le=EXACT)] | Annotated[float, Meta(ge=-EXACT, le=EXACT)] | None
"""A value of a method's parameters."""


_ATOMS = frozenset((str, int, bool, type(None)))


def whole(number: float) -> float:
    """Return a number as JSON has it, which does not distinguish 3.0 from 3."""
    return int(number) if number.is_integer() and abs(number) <= EXACT else number


def rounded(value: Any) -> Any:
    """Return plain JSON with every float rounded to five significant digits, mappings as dicts and sequences as lists.

    Raises ValueError for a number that is not finite, TypeError for a value that JSON cannot hold.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number is NaN or infinite, as happens when a model's arithmetic overflows; try dtype float32")
        return whole(float(f"{value:.5g}"))
    if isinstance(value, list | tuple):
        return [entry if type(entry) in _ATOMS else rounded(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(key): entry if type(entry) in _ATOMS else rounded(entry) for key, entry in value.items()}
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, int):
        return value
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


class Frozen(Struct, frozen=True):
    """An immutable record."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with new values in these fields."""
        return structs.replace(self, **changes)


class Object(Frozen, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A JSON object with these fields and no others; fields with their default value are left out."""


class Array(Frozen, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A JSON array of the fields' values in order; trailing nulls may be left out."""


class Node(Array, frozen=True):
    """One node of a draft tree.

    ``q`` is the drafter's probability of this token given its parent, None if the drafter has none (a copied token). The
    acceptance rule uses it as is, unless the step is ``certain``: then it is merely the drafter's confidence. ``p`` is the
    target's probability, None if the target did not score the node. Both are after temperature, top-k and top-p. At
    temperature 0 the rule looks only at the largest logit, and both are the plain softmax, for comparison. ``draw`` is the
    random number in [0, 1) that was compared with ``threshold``; both are None if the rule draws nothing per node. ``grid`` is
    (row, column) in an image run.
    """

    parent: Annotated[int, Meta(ge=-1, le=MAX_NODES - 1)]
    """Index of an earlier node; -1 for the root."""
    token: Token
    text: Text
    q: Probability | None = None
    """The drafter's probability; null for a point mass."""
    p: Probability | None = None
    """The target's probability; null if the target did not score the node."""
    status: Annotated[str, one_of(*STATUSES)] = SKIPPED
    threshold: Annotated[float, Meta(ge=-1e9, le=1e9)] | None = None
    """The number that the draw was compared with."""
    draw: Probability | None = None
    """The random number in [0, 1)."""
    grid: Grid | None = None


class Candidate(Array, frozen=True):
    """A token that the target ranked high at some node: id, text, and probability as in ``Node.p``."""

    token: Token
    text: Text
    p: Probability


class TargetRow(Array, frozen=True):
    """The target's prediction after ``node``: its top few tokens, most likely first. Only for visited nodes."""

    node: NodeIndex
    top: Annotated[tuple[Candidate, ...], Meta(max_length=64)]


class Bonus(Array, frozen=True):
    """The target's own token that ends a step, a child of the node at which the walk ended.

    ``source`` is "target" if it was drawn from p itself and "residual" if from the residual distribution after a rejection.
    """

    parent: NodeIndex
    token: Token
    text: Text
    p: Probability | None
    source: Annotated[str, one_of("target", "residual")] = "target"
    grid: Grid | None = None


class Nanoseconds(Array, frozen=True):
    """Time of one step by phase, in nanoseconds. ``host`` is the rest of the step's wall time, except for ``aside``: the time
    spent on data that is only shown, which no total includes."""

    draft: Count = 0
    verify: Count = 0
    judge: Count = 0
    commit: Count = 0
    host: Count = 0
    aside: Count = 0

    @property
    def total(self) -> int:
        return self.draft + self.verify + self.judge + self.commit + self.host


class Note(Frozen, frozen=True):
    """A method's own data on one step, as stored in a trace.

    ``type`` names the panel that draws it, ``data`` is plain JSON. Known types have the fields given in ``trace.notes``; a type
    written by a newer version is kept unchanged.
    """

    type: NoteType
    data: Mapping[str, Any]


class Step(Object, frozen=True, tag="step", tag_field="kind"):
    """One round: root, drafted tree, one target pass, verdict, commit, bonus token.

    ``position`` is the root's absolute position, which is also the number of tokens in the target's cache before the pass.
    ``path`` lists the accepted nodes from the root's child downwards. ``emitted`` are the tokens added to the output: the
    path, then the bonus, cut at end-of-sequence, budget or context; ``pieces`` is the text each of them adds.
    ``verified`` counts the drafted nodes that the target scored, ``padded`` the rows of its pass (root and padding included).
    ``passes`` is how often the target ran: more than once if rejected positions of a block are resampled one by one.
    A *resampled* node on the path carries its new token. ``certain`` means that the drafts were chosen, not sampled: a rule
    that compares p with q treated each as a point mass, whatever confidence ``Node.q`` holds.
    """

    index: Annotated[int, Meta(ge=0, le=MAX_STEPS - 1)]
    """Number of steps before this one."""
    position: Annotated[int, Meta(ge=0, le=100_000_000)]
    """Absolute position of the root, which is also the length of the target's cache before the pass."""
    nodes: Annotated[tuple[Node, ...], Meta(min_length=1, max_length=MAX_NODES)]
    """The draft tree, root first, parents before children."""
    path: Annotated[tuple[NodeIndex, ...], Meta(max_length=MAX_NODES)]
    """Accepted nodes from the root's child downwards."""
    bonus: Bonus | None
    emitted: Annotated[tuple[Token, ...], Meta(max_length=MAX_NODES + 1)]
    """Tokens added to the output: path, then bonus, cut at the end."""
    pieces: Annotated[tuple[Text, ...], Meta(max_length=MAX_NODES + 1)]
    rule: Annotated[str, one_of(*RULES)]
    time: Nanoseconds
    cut: Annotated[str, one_of(*CUTS)] | None = None
    draft_calls: Count = 0
    verified: Annotated[int, Meta(ge=0, le=MAX_NODES - 1)] = 0
    """Number of drafted nodes that the target scored."""
    padded: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """Number of rows in the target's pass, root and padding included."""
    rows: Annotated[tuple[TargetRow, ...], Meta(max_length=MAX_NODES)] = ()
    notes: Annotated[tuple[Note, ...], Meta(max_length=16)] = ()
    passes: Annotated[int, Meta(ge=1, le=100_000)] = 1
    """Number of target passes in this step; 1 if absent."""
    certain: bool = False
    """Whether drafts were chosen, not sampled: the rule treated each as a point mass, and q is merely a confidence."""

    @property
    def depths(self) -> tuple[int, ...]:
        """Depth of every node; the root is 0."""
        depths: list[int] = []
        for node in self.nodes:
            depths.append(0 if node.parent < 0 else depths[node.parent] + 1)
        return tuple(depths)

    @property
    def accepted(self) -> int:
        """Number of drafted tokens in the output; the bonus, resampled tokens and tokens cut off do not count."""
        emitted_path = self.path[: len(self.emitted)]
        return sum(self.nodes[number].status != RESAMPLED for number in emitted_path)

    @property
    def pruned(self) -> int:
        """Number of candidates pruned before the target's pass. The best are recorded as nodes; a growth note counts all."""
        carried = sum(node.status == PRUNED for node in self.nodes)
        return max(carried, (self.considered or 0) - (len(self.nodes) - 1 - carried))

    @property
    def considered(self) -> int | None:
        """Number of drafted candidates according to a growth note; None without one."""
        counts = [count for note in self.notes if isinstance(count := note.data.get("considered"), int)]
        return max(counts, default=None)


class Sampling(Object, frozen=True, omit_defaults=False):
    """Settings for choosing tokens. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 keep every token.

    ``generation`` is the number of earlier runs that the drafter learned from; its draws are keyed by it as well as by the seed.
    """

    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    top_p: Probability = 1.0
    seed: Annotated[int, Meta(ge=-(2**63))] = 0
    generation: Count = 0
    """Number of earlier runs that the drafter learned from, 0 if absent; its draws are keyed by it as well as by the seed."""


class Codebook(Object, frozen=True):
    """The picture codes of an image run, laid out as a map.

    ``places`` is base64 of two little-endian 16-bit numbers per code: its first two principal components, scaled to the full
    range. ``patches`` is base64 of [code, row, column, rgb], square, one byte each: the mean of the cells with this code in the
    image model's training pictures; empty if not computed. ``colours`` is base64 of red, green and blue, one byte each: the
    mean of the patch, or, without patches, the mean colour of a picture made of that code alone.
    """

    size: Annotated[int, Meta(ge=1, le=65_536)]
    places: Annotated[str, Meta(max_length=400_000)]
    colours: Annotated[str, Meta(max_length=300_000)]
    patches: Annotated[str, Meta(max_length=400_000)] = ""


class Run(Object, frozen=True, tag="run", tag_field="kind"):
    """The request, the models and the machine. ``parameters`` are the method's; ``warnings`` are always shown on screen.

    ``grid`` is (rows, columns) of an image run, ``guidance`` its guidance scale (1: none).
    """

    modality: Annotated[str, one_of("text", "vision_language", "image")]
    target: Line
    method: Annotated[str, Meta(min_length=1, max_length=128)]
    title: Name
    exactness: Annotated[str, one_of("exact", "relaxed")]
    parameters: Annotated[Mapping[str, Setting], Meta(max_length=64)]
    sampling: Sampling
    device: Name
    dtype: Word
    tier: Word
    prompt: Document
    prompt_pieces: Annotated[tuple[Text, ...], Meta(max_length=262_144)]
    max_new_tokens: Annotated[int, Meta(ge=0, le=1_000_000)]
    bound: Paragraph = ""
    draft: Line = ""
    chat_template: bool = False
    tokenizer_hash: Name = ""
    libraries: Annotated[Mapping[str, Name], Meta(max_length=64)] = {}
    machine: Line = ""
    recorded_at: Word = ""
    warnings: Annotated[tuple[Paragraph, ...], Meta(max_length=64)] = ()
    grid: Grid | None = None
    guidance: Annotated[float, Meta(ge=0, le=1000)] | None = None
    codebook: Codebook | None = None


class Divergence(Object, frozen=True):
    """The first divergence of a run from its baseline.

    ``position`` is an index into the output, ``gap`` the difference between the baseline's two largest logits there.
    """

    position: Annotated[int, Meta(ge=0, le=1_000_000)]
    gap: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class Baseline(Object, frozen=True):
    """The target's own autoregressive run.

    It had the same prompt, seed, tier and process. ``token_ns`` has one entry per token.
    """

    token_ns: Annotated[tuple[Count, ...], Meta(max_length=1_000_000)]
    prefill_ns: Count
    equal: bool
    first_divergence: Divergence | None = None
    pieces: Annotated[tuple[Text, ...], Meta(max_length=1_000_000)] = ()
    """Its text by token from the first divergence on; absent if it did not diverge, or if the text was not recorded."""
    picture: Document = ""
    """The picture of an image run's baseline, base64 of a PNG; absent if it equals the run's own picture."""
    capture_ns: Count = 0
    """Time spent capturing passes as CUDA graphs; no other time includes it."""

    @property
    def total_ns(self) -> int:
        return sum(self.token_ns)


class PhaseSeconds(TypedDict, total=False):
    """Seconds of a run by phase; ``total`` leaves out the prefill and the capturing of CUDA graphs, if any."""

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
    """Metrics computed from the steps. Further keys may follow; an undefined number is null."""

    tau: Amount | None
    steps: Count
    passes: Count
    emitted: Count
    accepted: Count
    accepted_by_depth: Annotated[list[Probability | None], Meta(max_length=MAX_NODES)]
    histogram: Annotated[list[Count], Meta(max_length=MAX_NODES + 1)]
    node_efficiency: Amount | None
    cut_steps: Count
    draft_calls: Count
    verified: Count
    reason: Annotated[str, one_of(*REASONS)]
    seconds: PhaseSeconds
    shares: PhaseShares
    tokens_per_second: Amount | None
    baseline_tokens_per_second: Amount | None
    speedup: Amount | None
    predicted_speedup: Amount | None
    first_divergence: Divergence | None


class End(Object, frozen=True, tag="end", tag_field="kind"):
    """The end of a run. ``metrics`` is the result of ``trace.metrics.summarise`` for the steps.

    ``picture`` is an image run's picture, complete or partial, as base64 of a PNG.
    """

    reason: Annotated[str, one_of(*REASONS)]
    output_ids: Annotated[tuple[Token, ...], Meta(max_length=1_000_000)]
    text: Document
    prefill_ns: Count
    metrics: Mapping[str, Any] = {}
    message: Annotated[str, Meta(max_length=65_536)] = ""
    baseline: Baseline | None = None
    picture: Document = ""
    """An image run's picture: base64 of a PNG."""
    captures: Count = 0
    """Number of passes captured as CUDA graphs in this run. The model's next run replays them."""
    capture_ns: Count = 0
    """Time spent on these captures; neither the steps nor the prefill include it."""
    busy: Paragraph = ""
    """A caveat for readers of the timings, if other programs kept the run waiting."""


class Trace(Frozen, frozen=True):
    """One run, complete or in progress. ``end`` is None while it is in progress."""

    run: Run
    steps: tuple[Step, ...]
    end: End | None = None

    @property
    def baseline(self) -> Baseline | None:
        """The target's own run; None if none was recorded."""
        return None if self.end is None else self.end.baseline

    def show(self, step: int | None = None, *, height: int = 680) -> Any:
        """Show the stage in a notebook, ``height`` pixels high: at ``step``, counted from 0, or playing from the first step.

        Raises BadInput if there is no such step.
        """
        # Imported here: the viewer depends on the trace room, never the reverse.
        return importlib.import_module("specviz.viewer.replay").frame(self, step, height)

    def _repr_html_(self) -> str:
        """Return a notebook's display of a trace."""
        return str(self.show()._repr_html_())
