"""The first rungs of the ladder, for every row of its table: the target's own tokens, wherever a run begins and ends."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specviz.acceptance.exact import Rejection
from specviz.engine.interfaces import Composition, Draft, Proposal
from specviz.engine.loop import LEVELS, Decoding, Recorder
from specviz.engine.regions import Regions
from specviz.engine.sampling import Noise
from specviz.engine.tree import DraftTree
from specviz.errors import ModelUnavailable
from specviz.methods.owl.drafting import SpecToken
from specviz.methods.registry import all_methods
from specviz.trace.schema import Node
from tests.support.ladder import REPEATED, ROWS, SHORT, WARPS, Row, Way, baseline, fast, first
from tests.support.tiny.text import Letters, decode, shortened, tiny_target
from tests.support.worlds.text import Audit


def _cases(cases: Sequence[tuple[Row, object, bool]]) -> list[object]:
    """Parameters with their names; what is not in the fast lane is marked slow."""
    return [
        pytest.param(
            row, how, marks=() if quick else pytest.mark.slow, id=f"{row}-{how if isinstance(how, (str, Way)) else len(how)}"
        )
        for row, how, quick in cases
    ]


BANDITS = {"bandit_ucb", "bandit_exp3"}
"""Other learners over the pool of arms that ``not_a_bandit`` chooses from."""
BY_TEXT = {row.method for row in ROWS if row.world == "text"}


def _quick(row: Row) -> bool:
    """What climbs by texts as well, or is another learner over one pool of arms, has but its cache compared in the fast lane."""
    return (row.world != "vision" or row.method not in BY_TEXT) and row.method not in BANDITS


CLIMBED = [(row, way, way in fast(row, row.ways) and _quick(row)) for row in ROWS for way in row.climbs]
COMPILED = [
    *((Row("autoregressive"), Way("graph", dtype, "warm"), False) for dtype in ("float64", "float32")),
    *(
        (row, way, False)
        for row in ROWS
        if row.world == "text"
        for way in row.climbs
        if way.tier == "graph" and "owl" not in row.method
    ),
]
"""Rows with compiled passes. OWL's and HOWL's passes stay plain: they read the [SPEC] token's own embedding."""
AUDITED = [
    (row, way, way.tier == "eager" and way in fast(row, row.audits))
    for row in ROWS
    for way in row.audits
    if way.tier == "eager" or row is first(row)  # a captured pass writes one cache, whichever parameters drafted
]
FULL = [
    (row, tier, bool(fast(row, row.ways)) and tier == "eager" and _quick(row))
    for row in ROWS
    for tier in (row.full if row is first(row) else row.full[:1])
]
BEGUN = [
    (row, prompt, bool(fast(row, row.ways)) and prompt == row.prompts[0])
    for row in ROWS
    for prompt in (row.prompts if row is first(row) else row.prompts[:1])
]


# A method's first row in a world: what holds for all its rows, all learners over one pool of arms, and any number format.
AUDIT_LENGTH = shortened(27)
"""Tokens of a run whose cache is compared after every step."""
QUICK = {"prompt_lookup", "eagle2", "traversal"}
FIRST = [
    (row, row.ways[0], row.method in QUICK and row.world != "vision")
    for row in ROWS
    if row is first(row) and row.world not in (*REPEATED, "int8") and row.method not in BANDITS
]
ENDED = [*FIRST, *((row, row.ways[0], False) for row in ROWS if "compare" in row.values)]


def _depths(nodes: Sequence[Node]) -> list[int]:
    """Depth of every node that was sent to the target."""
    depths = [0]
    for node in nodes[1:]:
        if node.status != "pruned":
            depths.append(depths[node.parent] + 1)
    return depths


def test_every_method_climbs():
    """Those that draw pictures do so in test_image_methods.py."""
    named = {name for name, card in all_methods().items() if set(card.modality) != {"image"}}
    assert {row.method for row in ROWS} == named - {"autoregressive"}, "a new method needs a row"


@pytest.mark.parametrize(("row", "way"), _cases(CLIMBED))
def test_same_tokens_as_the_baseline(row, way):
    expected, memory, rounds = baseline(row.world, way)[0][: row.length(way)], {}, []
    for _ in range(row.runs):
        place = row.open(way)
        run = row.decode(place, way, expected, memory)
        assert run.ids == expected
        accepted = [len(step.path) for step in run.steps]
        assert sum(accepted) >= row.least * len(expected), "hardly anything was accepted, so hardly anything was tested"
        assert not row.least or max(accepted) >= row.deep
        assert row.deep == 1 or len(set(accepted)) > 1
        assert not row.misses or min(accepted) == 0
        rounds.append(len(run.steps))
    assert not row.recalls or rounds[1] < 0.6 * rounds[0], "the second run remembers the first one's output"


@pytest.mark.slow
@pytest.mark.parametrize(("row", "way"), _cases(COMPILED))
def test_compiled_passes_write_the_same_tokens(row, way, monkeypatch):
    """The tokens that plain passes write, in single precision too."""
    monkeypatch.setattr(Regions, "background", False)
    (whole, _), fused, memory = baseline(row.world, way), replace(way, tier="compiled"), dict[Any, Any]()
    expected = whole if row.method == "autoregressive" else whole[: row.length(way)]
    place = row.open(fused)
    for _ in range(row.runs):
        assert row.decode(place, fused, expected, memory).ids == expected
    regions = place.target.decoder.regions
    assert regions.compiled and not [sentence for sentence in regions.take_news() if "failed" in sentence]


@pytest.mark.parametrize(("row", "tier"), _cases(FULL))
def test_a_full_context_ends_the_run_with_the_same_text(row, tier):
    way, memory = Way(tier, "float64", "greedy"), {}
    expected, reason = baseline(row.world, way, 500, context=SHORT)
    for _ in range(row.runs):
        place = row.open(way, SHORT)
        run = decode(place.target, place.compose(row.method, row.values, WARPS["greedy"], memory), place.prompt, 500)
        assert run.outcome.reason == reason == "context"
        assert run.ids == expected
        assert len(place.prompt) + len(run.ids) == place.target.context_length


@pytest.mark.parametrize(("row", "way"), _cases(ENDED))
def test_budget_and_end_of_text_may_stand_inside_a_path(row, way, monkeypatch):
    """Both at tokens that were drafted and accepted; the shortest budget of all is one token."""
    whole = baseline(row.world, way)[0]
    for ids in (whole[:48], whole):  # a rare acceptance wants a long text
        drafted, place = [], 0
        for step in row.decode(row.open(way), way, ids, {}).steps:
            drafted += range(place, min(place + len(step.path), len(ids)))  # the last round's path may be longer
            place += len(step.emitted)
        if drafted or not row.least:
            break
    else:
        pytest.fail("nothing was accepted, so nothing was tested")
    ids = ids[: max(48, drafted[0] + 9 if drafted else 0)]
    drafted = [at for at in drafted if at < len(ids)]
    for budget in {1, *(at + 1 for at in drafted[:1])}:
        run = row.decode(row.open(way), way, ids, {}, budget)
        assert (run.ids, run.outcome.reason) == (ids[:budget], "budget")
    new = [at for at in range(len(ids)) if ids[at] not in ids[:at]]
    at = min(set(new) & set(drafted), default=new[-1])
    ending = row.open(way)
    monkeypatch.setattr(ending.target, "eos_ids", frozenset({ids[at]}))
    run = row.decode(ending, way, ids, {})
    assert (run.ids, run.outcome.reason) == (ids[: at + 1], "eos")
    assert at not in drafted or (run.steps[-1].cut, run.steps[-1].bonus) == ("eos", None)


@pytest.mark.parametrize(("row", "way"), _cases(FIRST))
def test_no_draft_reaches_across_a_boundary(row, way, monkeypatch):
    (expected, _), place = baseline(row.world, way), row.open(way)
    for ahead in (0, 3, 12):
        monkeypatch.setattr(place.target, "boundary", len(place.prompt) + ahead)
        made = place.compose(row.method, row.values, WARPS[way.warped], {})
        if isinstance(made.opener, SpecToken):
            with pytest.raises(ModelUnavailable, match="set the parameter probe=false"):
                made.opener.open(place.target, SHORT, ())
            continue
        run = decode(place.target, made, place.prompt, 18, WARPS[way.warped], 7)
        assert run.ids == expected[:18]
        reached = [(step.position + 1, step.position + 1 + max(_depths(step.nodes))) for step in run.steps]
        assert all(end <= place.target.boundary for start, end in reached if start <= place.target.boundary)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("row", "way"), _cases(FIRST))
def test_logits_that_are_no_numbers_end_a_run_at_once(
    row, way, level, monkeypatch
):  # fmt: skip
    """One row of the head is damaged: it wins every argmax and spoils every sum."""
    place, warp = row.open(way), WARPS[way.warped]
    made = place.compose(row.method, row.values, warp, {})
    head = place.target.model.get_output_embeddings()
    damaged = head.weight.detach().index_fill(0, torch.tensor(7), torch.nan)
    monkeypatch.setitem(head._parameters, "weight", torch.nn.Parameter(damaged, requires_grad=False))
    run = Decoding(place.target, made, place.prompt, warp, Noise(7), 40, Recorder(Letters(), level))
    assert list(run.steps()) == [] and run.outcome.output_ids == []
    assert run.outcome.reason == "error" and "is infinite or NaN" in run.outcome.message


def test_a_drafter_that_gives_no_numbers_is_told_from_its_target():
    """What is left of the target's distribution after a rejection would be none either, and any token drawn from it."""
    target = tiny_target()
    draft = Draft(DraftTree.of([7, 1], [-1, 0], target.device), {0: Proposal(torch.full((target.vocab_size,), torch.nan))})
    controller = SimpleNamespace(**dict.fromkeys(("begin", "observe", "close"), lambda *given: None), draft=lambda context: draft)
    run = Decoding(target, Composition(controller, Rejection()), [5, 6, 7], WARPS["warm"], Noise(7), 40, Recorder(Letters()))
    assert list(run.steps()) == [] and run.outcome.reason == "error"
    assert run.outcome.message.startswith("The drafter's output for token 4 of the text is infinite or NaN")


@pytest.mark.parametrize(("row", "prompt"), _cases(BEGUN))
def test_shortest_prompts(row, prompt):
    way = Way("eager", "float64", row.ends)
    place, warp = row.open(way), WARPS[row.ends]
    run = decode(place.target, place.compose(row.method, row.values, warp, {}), prompt, 20, warp)
    assert run.ids == baseline(row.world, way, 20, prompt, seed=0)[0]


@pytest.mark.parametrize(("row", "way"), _cases(AUDITED))
def test_the_cache_equals_a_fresh_prefill_after_every_step(row, way, monkeypatch):
    place, warp, memory = row.open(way), WARPS[way.warped], {}
    for _ in range(row.runs - 1):
        decode(place.target, place.compose(row.method, row.values, warp, memory), place.prompt, AUDIT_LENGTH, warp, 3)
    made, audit = place.compose(row.method, row.values, warp, memory), Audit(place.target)
    opens = SpecToken.open
    monkeypatch.setattr(place.target, "open", audit.open)
    monkeypatch.setattr(SpecToken, "open", lambda token, target, *given: audit.open(*given, opened=partial(opens, token, target)))
    run = decode(place.target, made, place.prompt, AUDIT_LENGTH, warp)
    assert audit.checked == len(run.steps)
    assert audit.worst < 1e-9
