"""Records of a trace: frozen plain data, written by the engine and read by every view.

A trace file holds a ``run`` line, then ``step`` lines, then an ``end`` line.
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
"""Maximum number of nodes in one step, including the root and pruned nodes."""
MAX_PRUNED = 96
"""Maximum number of pruned nodes recorded with a step. The best ones are kept, and a growth note has the full count."""
MAX_TEXT = 4096
"""Maximum length in characters of a token's text, and of a string or key in free-form JSON."""
EXACT = 2**53 - 1
"""The largest integer that every JSON reader represents exactly."""

# Node 0 is the last committed token, which no rule judges.
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
    """Return a constraint that allows only these words."""
    return Meta(pattern=rf"^(?:{'|'.join(words)})$(?!\n)")


Token = Annotated[int, Meta(ge=0, le=2**31 - 1, description="A token id of the target's vocabulary.")]
Text = Annotated[str, Meta(max_length=MAX_TEXT, description="Text of one token. Model output, so treat it as untrusted.")]
NodeIndex = Annotated[int, Meta(ge=0, le=MAX_NODES - 1, description="An index into nodes.")]
Count = Annotated[int, Meta(ge=0, le=EXACT)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Amount = Annotated[float, Meta(ge=0, le=1e12)]
OutputLength = Annotated[int, Meta(ge=0, le=1_000_000)]
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
    """Return a float without a fractional part as an int, since JSON does not distinguish 3.0 from 3."""
    return int(number) if number.is_integer() and abs(number) <= EXACT else number


def rounded(value: Any) -> Any:
    """Return ``value`` as plain JSON, with floats rounded to five significant digits.

    Raises ValueError for NaN and infinity, and TypeError for a type that JSON cannot represent.
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
    """Base class of immutable records."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these fields changed."""
        return structs.replace(self, **changes)


class Object(Frozen, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of records stored as JSON objects. Unknown fields are errors, and default values are omitted."""


class Array(Frozen, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Base class of records stored as JSON arrays, with field values in order. Trailing nulls may be omitted."""


class Node(Array, frozen=True):
    """One node of a draft tree.

    ``p`` and ``q`` are probabilities after temperature, top-k and top-p. At temperature 0, both come from the plain softmax and
    are only for display, because the rule compares logits. In a ``certain`` step, ``q`` is only the drafter's confidence.
    """

    parent: Annotated[int, Meta(ge=-1, le=MAX_NODES - 1)]
    """Index of an earlier node; -1 for the root."""
    token: Token
    text: Text
    q: Probability | None = None
    """The drafter's probability of this token given its parent; null if the drafter assigns none, as for a copied token."""
    p: Probability | None = None
    """The target's probability; null if the target did not score the node."""
    status: Annotated[str, one_of(*STATUSES)] = SKIPPED
    threshold: Annotated[float, Meta(ge=-1e9, le=1e9)] | None = None
    """The number compared with ``draw``; null if the rule makes no draw per node."""
    draw: Probability | None = None
    """The uniform random number in [0, 1)."""
    grid: Grid | None = None


class Candidate(Array, frozen=True):
    """One of the target's most likely tokens after a node, with its probability as in ``Node.p``."""

    token: Token
    text: Text
    p: Probability


class TargetRow(Array, frozen=True):
    """The target's most likely tokens after the visited node ``node``, most likely first."""

    node: NodeIndex
    top: Annotated[tuple[Candidate, ...], Meta(max_length=64)]


class Bonus(Array, frozen=True):
    """The token that the target adds at the end of a step, after the last accepted node.

    ``source`` is the distribution that the token was drawn from: p ("target") or the residual after a rejection ("residual").
    """

    parent: NodeIndex
    token: Token
    text: Text
    p: Probability | None
    source: Annotated[str, one_of("target", "residual")] = "target"
    grid: Grid | None = None


class Nanoseconds(Array, frozen=True):
    """Time of one step by phase, in nanoseconds.

    ``host`` is the wall time outside the other phases. ``aside``, the time spent on data for display only, is in no total.
    """

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
    """Method-specific data on one step, as stored in a trace.

    ``type`` names the viewer panel, and ``data`` is plain JSON. ``trace.notes`` defines the known types; notes of unknown types
    are kept unchanged.
    """

    type: NoteType
    data: Mapping[str, Any]


class Step(Object, frozen=True, tag="step", tag_field="kind"):
    """One round: draft a tree, verify it, judge it and commit the accepted path and the bonus token.

    ``pieces`` lists the text that each token in ``emitted`` adds. A *resampled* node on the path carries its new token.
    """

    index: Annotated[int, Meta(ge=0, le=MAX_STEPS - 1)]
    """Number of steps before this one."""
    position: Annotated[int, Meta(ge=0, le=100_000_000)]
    """Absolute position of the root, equal to the length of the target's cache before the pass."""
    nodes: Annotated[tuple[Node, ...], Meta(min_length=1, max_length=MAX_NODES)]
    """The draft tree, root first, parents before children."""
    path: Annotated[tuple[NodeIndex, ...], Meta(max_length=MAX_NODES)]
    """Accepted nodes, from the child of the root downwards."""
    bonus: Bonus | None
    emitted: Annotated[tuple[Token, ...], Meta(max_length=MAX_NODES + 1)]
    """Tokens added to the output: the path, then the bonus, cut at end-of-sequence, budget or context."""
    pieces: Annotated[tuple[Text, ...], Meta(max_length=MAX_NODES + 1)]
    rule: Annotated[str, one_of(*RULES)]
    time: Nanoseconds
    cut: Annotated[str, one_of(*CUTS)] | None = None
    draft_calls: Count = 0
    verified: Annotated[int, Meta(ge=0, le=MAX_NODES - 1)] = 0
    """Number of drafted nodes that the target scored."""
    padded: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """Number of rows in the target's pass, including the root and padding."""
    rows: Annotated[tuple[TargetRow, ...], Meta(max_length=MAX_NODES)] = ()
    notes: Annotated[tuple[Note, ...], Meta(max_length=16)] = ()
    passes: Annotated[int, Meta(ge=1, le=100_000)] = 1
    """Number of target passes; more than 1 if rejected positions of a block were resampled one by one."""
    certain: bool = False
    """Whether drafts were chosen deterministically; the acceptance rule then treats each draft as a point mass (q = 1)."""

    @property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node, 0 for the root."""
        depths: list[int] = []
        for node in self.nodes:
            depths.append(0 if node.parent < 0 else depths[node.parent] + 1)
        return tuple(depths)

    @property
    def accepted(self) -> int:
        """Number of drafted tokens in the output, without the bonus, resampled tokens and tokens cut off at the end."""
        emitted_path = self.path[: len(self.emitted)]
        return sum(self.nodes[number].status != RESAMPLED for number in emitted_path)

    @property
    def pruned(self) -> int:
        """Number of candidates pruned before the target's pass, including candidates that only a growth note counts."""
        carried = sum(node.status == PRUNED for node in self.nodes)
        return max(carried, (self.considered or 0) - (len(self.nodes) - 1 - carried))

    @property
    def considered(self) -> int | None:
        """Number of drafted candidates according to the step's notes; None if no note has the count."""
        counts = [count for note in self.notes if isinstance(count := note.data.get("considered"), int)]
        return max(counts, default=None)


class Sampling(Object, frozen=True, omit_defaults=False):
    """Sampling settings. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 are off."""

    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    top_p: Probability = 1.0
    seed: Annotated[int, Meta(ge=-(2**63))] = 0
    generation: Count = 0
    """Number of earlier runs that the drafter learned from. The drafter's random draws depend on this number and the seed."""


class Codebook(Object, frozen=True):
    """An image model's codebook as a two-dimensional map. Arrays are base64-encoded."""

    size: Annotated[int, Meta(ge=1, le=65_536)]
    """Number of codes."""
    places: Annotated[str, Meta(max_length=400_000)]
    """[code, 2] as little-endian 16-bit integers: the first two principal components, scaled to the full range."""
    colours: Annotated[str, Meta(max_length=300_000)]
    """[code, rgb] as bytes: mean colour of the patch or, without patches, of an image that consists of this code only."""
    patches: Annotated[str, Meta(max_length=400_000)] = ""
    """[code, row, column, rgb] as bytes: mean of the training images' cells with this code. Empty if not computed."""


class Run(Object, frozen=True, tag="run", tag_field="kind"):
    """The request, the models and the machine.

    ``parameters`` maps the method's parameter names to values. In an image run, ``grid`` is (rows, columns) and ``guidance`` is
    the scale of classifier-free guidance (1: off).
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
    max_new_tokens: OutputLength
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
    """The first divergence of a run from the baseline.

    ``position`` is an index into the output, and ``gap`` the difference between the baseline's two largest logits at that
    position.
    """

    position: OutputLength
    gap: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class Baseline(Object, frozen=True):
    """The autoregressive run of the target, with the same prompt, seed, tier and process.

    ``token_ns`` is the decoding time of each token in nanoseconds.
    """

    token_ns: Annotated[tuple[Count, ...], Meta(max_length=1_000_000)]
    prefill_ns: Count
    equal: bool
    first_divergence: Divergence | None = None
    pieces: Annotated[tuple[Text, ...], Meta(max_length=1_000_000)] = ()
    """Text of each baseline token from the first divergence on; absent without a divergence or if not recorded."""
    picture: Document = ""
    """The baseline's image as a base64-encoded PNG; absent if equal to the run's image."""
    capture_ns: Count = 0
    """Time spent on CUDA graph capture, which no other time includes."""

    @property
    def total_ns(self) -> int:
        return sum(self.token_ns)


class Metrics(TypedDict, total=False):
    """Metrics computed from the steps. More keys are allowed, and undefined metrics are null."""

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
    # By phase; "total" is their sum, which excludes "prefill" and any "capture" of CUDA graphs.
    seconds: dict[Word, Amount]
    shares: dict[Word, Probability | None]
    tokens_per_second: Amount | None
    baseline_tokens_per_second: Amount | None
    speedup: Amount | None
    predicted_speedup: Amount | None
    first_divergence: Divergence | None


class End(Object, frozen=True, tag="end", tag_field="kind"):
    """The end of a run. ``metrics`` is the result of ``trace.metrics.summarise``."""

    reason: Annotated[str, one_of(*REASONS)]
    output_ids: Annotated[tuple[Token, ...], Meta(max_length=1_000_000)]
    text: Document
    prefill_ns: Count
    metrics: Mapping[str, Any] = {}
    message: Annotated[str, Meta(max_length=65_536)] = ""
    baseline: Baseline | None = None
    picture: Document = ""
    """The image of an image run, complete or partial, as a base64-encoded PNG."""
    captures: Count = 0
    """Number of CUDA graphs captured in this run, which the model's next run replays."""
    capture_ns: Count = 0
    """Time spent on CUDA graph capture, which neither the steps nor the prefill include."""
    memory: Count = 0
    """Bytes in use: the peak of what was allocated on the GPU, or what the process held at the end; 0 if not recorded."""
    busy: Paragraph = ""
    """A warning that other programs slowed this run down; empty if none did."""


class Trace(Frozen, frozen=True):
    """One run. ``end`` is None while the run is in progress."""

    run: Run
    steps: tuple[Step, ...]
    end: End | None = None

    @property
    def baseline(self) -> Baseline | None:
        """The autoregressive run, or None if not recorded."""
        return self.end.baseline if self.end else None

    def show(self, step: int | None = None, *, height: int = 680) -> Any:
        """Return the run's interactive page for a notebook.

        ``step``: step to show, from 0; by default, playback starts at the first step. ``height``: height in pixels.
        Raises BadInput if the step does not exist.
        """
        # Imported here: the viewer depends on specviz.trace, never the reverse.
        return importlib.import_module("specviz.viewer.replay").frame(self, step, height)

    def _repr_html_(self) -> str:
        return str(self.show()._repr_html_())
