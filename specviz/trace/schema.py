"""Schema of a run as frozen plain data: the one contract between the engine and everything that shows it.

A trace file holds one ``run`` line, then ``step`` lines, then an ``end`` line. Nothing here knows torch, plotly or gradio.
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
REASONS = (*CUTS, "cancelled", "time_limit", "error", "out_of_memory")
PHASES = ("draft", "verify", "judge", "commit", "host")


def one_of(*words: str) -> Meta:
    """The bound of a text that is one of these words."""
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
    """A number as JSON knows it, which does not tell 3.0 from 3."""
    return int(number) if number.is_integer() and abs(number) <= EXACT else number


def rounded(value: Any) -> Any:
    """Plain JSON with every float cut to five significant digits, mappings as dicts and sequences as lists.

    Raises ValueError on a number that is not finite, TypeError on what is no JSON.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number is NaN or infinite, as when a model's arithmetic overflows; try dtype float32")
        return whole(float(f"{value:.5g}"))
    if isinstance(value, list | tuple):
        return [entry if type(entry) in _ATOMS else rounded(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(key): entry if type(entry) in _ATOMS else rounded(entry) for key, entry in value.items()}
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, int):
        return value
    raise TypeError(f"JSON holds no {type(value).__name__}")


class Frozen(Struct, frozen=True):
    """A record that never changes."""

    def replace(self, **changes: Any) -> Self:
        """A copy with other values in these fields."""
        return structs.replace(self, **changes)


class Object(Frozen, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A JSON object with these fields and no others; one that has its default is left out."""


class Array(Frozen, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A JSON array of the fields' values in their order; a null at its end may be left out."""


class Node(Array, frozen=True):
    """One node of a draft tree.

    ``q`` is the drafter's probability of this token given its parent, None where the drafter has none (a copied token). The
    accept rule used it as it stands unless the step is ``certain``: then it is the drafter's confidence and no more. ``p`` is
    the target's probability, None where the target was never asked. Both are after temperature, top-k and top-p; at
    temperature 0, where the rule looks only at the largest logit, both are the plain softmax so that there is something to
    compare. ``draw`` is the random number in [0, 1) that was held against ``threshold``; both None when the rule draws
    nothing per node. ``grid`` is (row, column) in an image run.
    """

    parent: Annotated[int, Meta(ge=-1, le=MAX_NODES - 1)]
    """An earlier node, -1 for the root."""
    token: Token
    text: Text
    q: Probability | None = None
    """The drafter's probability; null for a point mass."""
    p: Probability | None = None
    """The target's probability; null where the target was not asked."""
    status: Annotated[str, one_of(*STATUSES)] = SKIPPED
    threshold: Annotated[float, Meta(ge=-1e9, le=1e9)] | None = None
    """What the draw was held against."""
    draw: Probability | None = None
    """The random number in [0, 1)."""
    grid: Grid | None = None


class Candidate(Array, frozen=True):
    """A token the target ranked high at some node: id, text, probability in the sense of ``Node.p``."""

    token: Token
    text: Text
    p: Probability


class TargetRow(Array, frozen=True):
    """What the target would have said after ``node``: its best few tokens, likeliest first. Only for visited nodes."""

    node: NodeIndex
    top: Annotated[tuple[Candidate, ...], Meta(max_length=64)]


class Bonus(Array, frozen=True):
    """The target's own token that ends a step, hanging from the node where the walk ended.

    ``source`` is "target" when drawn from p itself and "residual" when drawn from what rejection left over.
    """

    parent: NodeIndex
    token: Token
    text: Text
    p: Probability | None
    source: Annotated[str, one_of("target", "residual")] = "target"
    grid: Grid | None = None


class Nanoseconds(Array, frozen=True):
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


class Note(Frozen, frozen=True):
    """A method's own account of one step as it stands in a trace.

    ``type`` names the panel that draws it, ``data`` is plain JSON. Fields of known types are those of ``trace.notes``; a type
    that a newer version wrote is kept as it is.
    """

    type: NoteType
    data: Mapping[str, Any]


class Step(Object, frozen=True, tag="step", tag_field="kind"):
    """One round: root, drafted tree, one target pass, verdict, commit, bonus token.

    ``position`` is the root's absolute position, which is also the number of tokens in the target's cache before the pass.
    ``path`` lists the accepted nodes from the root's child downwards. ``emitted`` are the tokens added to the output: the
    path, then the bonus, cut at end-of-sequence, budget or context; ``pieces`` is the text each of them adds.
    ``verified`` counts the drafted nodes the target scored, ``padded`` the rows of its pass (root and padding included).
    ``passes`` is how often the target was run: more than once where rejected places of a block are drawn again one by one.
    On the path a node that was *resampled* carries its new token. ``certain`` says that the guesses were chosen, not drawn:
    a rule that weighs p against q took each of them as a point mass, whatever confidence stands in ``Node.q``.
    """

    index: Annotated[int, Meta(ge=0, le=MAX_STEPS - 1)]
    """Steps before this one."""
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
    """Drafted nodes the target scored."""
    padded: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """Rows of the target's pass, root and padding included."""
    rows: Annotated[tuple[TargetRow, ...], Meta(max_length=MAX_NODES)] = ()
    notes: Annotated[tuple[Note, ...], Meta(max_length=16)] = ()
    passes: Annotated[int, Meta(ge=1, le=100_000)] = 1
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


class Sampling(Object, frozen=True, omit_defaults=False):
    """How tokens are chosen. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 keep every token.

    ``generation`` is the number of earlier runs that taught the drafter: its draws are keyed by it as by the seed.
    """

    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    top_p: Probability = 1.0
    seed: Annotated[int, Meta(ge=-(2**63))] = 0
    generation: Count = 0
    """Earlier runs that taught the drafter, 0 where absent: its draws are keyed by it as by the seed."""


class Codebook(Object, frozen=True):
    """The picture codes of an image run as a map for the eye.

    ``places`` is base64 of two little-endian 16-bit numbers a code: its first two principal components, stretched to the
    whole range. ``patches`` is base64 of [code, row, column, rgb], square, a byte each: the mean of the cells that hold the
    code in pictures of the image model's training data; empty where nobody has counted. ``colours`` is base64 of red, green
    and blue, a byte each: the mean of the patch, without patches the mean colour of a picture of that code alone.
    """

    size: Annotated[int, Meta(ge=1, le=65_536)]
    places: Annotated[str, Meta(max_length=400_000)]
    colours: Annotated[str, Meta(max_length=300_000)]
    patches: Annotated[str, Meta(max_length=400_000)] = ""


class Run(Object, frozen=True, tag="run", tag_field="kind"):
    """What was asked, of what, on what. ``parameters`` are the method's; ``warnings`` are shown on screen, never hidden.

    ``grid`` is (rows, columns) of an image run, ``guidance`` how hard it follows its prompt (1: not at all harder).
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
    """Where a run first left its baseline.

    ``position`` counts the output's tokens, ``gap`` lies between the baseline's two best logits there.
    """

    position: Annotated[int, Meta(ge=0, le=1_000_000)]
    gap: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class Baseline(Object, frozen=True):
    """The target's own autoregressive run.

    It had the same prompt, seed, tier and process. ``token_ns`` is one entry a token.
    """

    token_ns: Annotated[tuple[Count, ...], Meta(max_length=1_000_000)]
    prefill_ns: Count
    equal: bool
    first_divergence: Divergence | None = None
    pieces: Annotated[tuple[Text, ...], Meta(max_length=1_000_000)] = ()
    """Its text by token from the first divergence on; absent where it wrote the same, or was recorded without."""
    picture: Document = ""
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
    """How a run ended. ``metrics`` is what ``trace.metrics.summarise`` makes of the steps.

    ``picture`` is what an image run drew, whole or so far, as base64 of a PNG.
    """

    reason: Annotated[str, one_of(*REASONS)]
    output_ids: Annotated[tuple[Token, ...], Meta(max_length=1_000_000)]
    text: Document
    prefill_ns: Count
    metrics: Mapping[str, Any] = {}
    message: Annotated[str, Meta(max_length=65_536)] = ""
    baseline: Baseline | None = None
    picture: Document = ""
    """What an image run drew: base64 of a PNG."""
    captures: Count = 0
    """Passes captured as CUDA graphs in this run. The next run of the model replays them."""
    capture_ns: Count = 0
    """Time that took: in no step and not in the prefill."""
    busy: Paragraph = ""
    """What a reader of the times has to know where other programs kept the run waiting."""


class Trace(Frozen, frozen=True):
    """One run, whole or so far. ``end`` is None while it is going on."""

    run: Run
    steps: tuple[Step, ...]
    end: End | None = None

    @property
    def baseline(self) -> Baseline | None:
        """The target's own run, None where none was recorded."""
        return None if self.end is None else self.end.baseline

    def show(self, step: int | None = None, *, height: int = 680) -> Any:
        """The stage in a notebook, ``height`` pixels high: at ``step``, counted from 0, or playing from the first one.

        Raises BadInput when there is no such step.
        """
        # The stage reads traces, and a trace knows nothing of it until somebody asks to see one: hence no import above.
        return importlib.import_module("specviz.viewer.replay").frame(self, step, height)

    def _repr_html_(self) -> str:
        """What a notebook shows of a trace."""
        return str(self.show()._repr_html_())
