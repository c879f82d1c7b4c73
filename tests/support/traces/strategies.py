"""Hypothesis strategies for whole traces that obey every rule of the format, however odd their contents."""

from __future__ import annotations

from hypothesis import strategies as st

from specviz.trace import metrics, wire
from specviz.trace.schema import (
    CUTS,
    EXACTNESS,
    MODALITIES,
    REASONS,
    RULES,
    Baseline,
    Bonus,
    Candidate,
    Codebook,
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
)  # fmt: skip

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
TOKEN = st.integers(0, 2**31 - 1)
SHARE = st.floats(0, 1).map(wire.rounded)
PROBABILITY = st.none() | SHARE
GRID = st.none() | st.tuples(st.integers(0, 65535), st.integers(0, 65535))
NS = st.integers(0, 2**40)
NUMBER = st.floats(-1e30, 1e30).map(wire.rounded)
FREE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
NUMBER_SMALL = st.floats(-1e6, 1e6).map(wire.rounded)
DATA = st.dictionaries(TEXT.filter(lambda key: key != "type"), FREE, max_size=3)
NOTE = st.builds(Note, st.text("abc_", min_size=1, max_size=8), DATA)
PARAMETERS = st.dictionaries(TEXT, st.booleans() | st.integers(0, 99) | TEXT, max_size=3)
TIME = st.builds(Nanoseconds, NS, NS, NS, NS, NS, NS)
RUN = st.builds(
    Run, modality=st.sampled_from(MODALITIES), target=TEXT, method=st.text("abc_", min_size=1, max_size=9), title=TEXT,
    exactness=st.sampled_from(EXACTNESS), parameters=PARAMETERS,
    sampling=st.builds(Sampling, SHARE, st.integers(0, 99), SHARE, st.integers(0, 2**64 - 1)),
    device=TEXT, dtype=TEXT, tier=TEXT, prompt=TEXT, prompt_pieces=st.lists(TEXT, max_size=4).map(tuple),
    max_new_tokens=st.integers(0, 9999), bound=TEXT, draft=TEXT, chat_template=st.booleans(), tokenizer_hash=TEXT,
    libraries=st.dictionaries(TEXT, TEXT, max_size=2), machine=TEXT, recorded_at=TEXT,
    warnings=st.lists(TEXT, max_size=2).map(tuple), grid=GRID, guidance=PROBABILITY,
    codebook=st.none() | st.builds(Codebook, st.integers(1, 9), TEXT, TEXT, TEXT), version=st.just(1),
)  # fmt: skip


@st.composite
def trees(draw: st.DrawFn, root: int | None) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """Nodes and a path that runs down from the root as far as it likes."""
    parents = [-1] + [draw(st.integers(0, place)) for place in range(draw(st.integers(0, 9)))]
    path: list[int] = []
    while True:
        below = [place for place, parent in enumerate(parents) if parent == (path[-1] if path else 0)]
        if not below or draw(st.booleans()):
            break
        path.append(draw(st.sampled_from(below)))
    nodes: list[Node] = []
    for place, parent in enumerate(parents):
        if place in path:
            status = draw(st.sampled_from(("accepted", "relaxed", "resampled")))
        elif place and nodes[parent].status == "pruned":
            status = "pruned"
        else:
            status = draw(st.sampled_from(("rejected", "skipped", "pruned", "resampled"))) if place else "root"
        token = root if root is not None and not place else draw(TOKEN)
        q, p, luck, threshold = draw(PROBABILITY), draw(PROBABILITY), draw(PROBABILITY), draw(st.none() | NUMBER_SMALL)
        nodes.append(Node(parent, token, draw(TEXT), q, p, status, threshold, luck, draw(GRID)))
    return tuple(nodes), tuple(path)


@st.composite
def steps(draw: st.DrawFn, index: int, position: int, root: int | None, last: bool) -> Step:
    """A step that can follow the one before; only the last may be cut."""
    nodes, path = draw(trees(root))
    end = path[-1] if path else 0
    source = st.sampled_from(("target", "residual"))
    bonus = draw(st.none() | st.builds(Bonus, st.just(end), TOKEN, TEXT, PROBABILITY, source, GRID))
    emitted = [nodes[node].token for node in path] + ([] if bonus is None else [bonus.token])
    cut = draw(st.sampled_from(CUTS)) if last and draw(st.booleans()) else None
    if cut:
        emitted = emitted[: draw(st.integers(0, len(emitted)))]
    scored = sum(node.status != "pruned" for node in nodes) - 1
    visited = draw(st.lists(st.integers(0, len(nodes) - 1), unique=True, max_size=3))
    candidate = st.builds(Candidate, TOKEN, TEXT, SHARE)
    rows = tuple(TargetRow(node, tuple(draw(st.lists(candidate, max_size=3)))) for node in visited)
    return Step(
        index, position, nodes, path, bonus, tuple(emitted), tuple(draw(TEXT) for _ in emitted),
        draw(st.sampled_from(RULES)), draw(TIME), cut, draw(st.integers(0, 9)), scored,
        scored + 1 + draw(st.integers(0, 9)), rows, tuple(draw(st.lists(NOTE, max_size=2))),
        draw(st.integers(1, 9)),
    )  # fmt: skip


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """A run, up to four steps, and perhaps an end, with or without a baseline."""
    found: list[Step] = []
    position, root = draw(st.integers(0, 999)), None
    count = draw(st.integers(0, 4))
    for index in range(count):
        found.append(draw(steps(index, position, root, index == count - 1)))
        position += len(found[-1].emitted)
        root = found[-1].emitted[-1] if found[-1].emitted else None
    end = draw(st.none() | ends(tuple(found)))
    return Trace(draw(RUN), tuple(found), end)


@st.composite
def ends(draw: st.DrawFn, found: tuple[Step, ...]) -> End:
    """An end whose totals are those of the steps."""
    output = tuple(token for step in found for token in step.emitted)
    reason = draw(st.sampled_from(REASONS))
    plain = None
    if draw(st.booleans()):
        gap = st.none() | st.floats(0, 100).map(wire.rounded)
        apart = draw(st.none() | st.builds(Divergence, st.integers(0, len(output)), gap))
        times = tuple(draw(st.lists(NS, min_size=len(output), max_size=len(output))))
        later = 0 if apart is None else len(output) - apart.position
        pieces = draw(st.sampled_from([0, later]))
        own = tuple(draw(st.lists(TEXT, min_size=pieces, max_size=pieces)))
        picture = "" if apart is None else draw(TEXT)
        plain = Baseline(times, draw(NS), apart is None and draw(st.booleans()), apart, own, picture)
    prefill = draw(NS)
    counted = wire.rounded(metrics.summarise(found, reason, prefill, plain))
    return End(reason, output, draw(TEXT), prefill, counted, draw(TEXT), plain, draw(TEXT))
