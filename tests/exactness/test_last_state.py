"""The ladder for drafts from the last token's state: probes that nobody reads, and the target's own text whatever is drafted."""

import pytest
import torch

from specviz.engine.stop import on_prefill_progress
from specviz.engine.tree import DraftTree, shape_of
from specviz.methods.owl.drafting import RecurrentDrafter, SpecToken, SpecTokenPass
from specviz.targets.text import TextTarget
from tests.support.rounds import context, entries
from tests.support.tiny.networks import recurrent_net
from tests.support.tiny.text import decode, tiny_target
from tests.support.worlds.foretold import foretold
from tests.support.worlds.text import GREEDY, PROMPT, WARM, baseline, compose

TREE = {"depth": 3, "width": 6, "nodes": 24}
TOKENS, PARENTS = [5, 7, 9, 3, 4, 8, 2], [-1, 0, 0, 1, 1, 3, 2]


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whatever_the_probe_holds_no_logit_and_no_cached_key_changes_in_any_bit(dtype, kernel):
    target = tiny_target(dtype=dtype)
    target.model.set_attn_implementation(kernel)
    target = TextTarget(target.model, "tiny", (), "eager")
    tree, seen = DraftTree.of(TOKENS, PARENTS), []
    for size in (0.0, 1.0, 1e4):
        session = SpecToken(size * torch.randn(32, dtype=dtype)).open(target, 64, (2,))
        first = session.prefill(PROMPT)
        found = session.score(tree)
        session.keep((0, 1, 3))
        kept = [part for layer in entries(session) for part in layer]
        seen.append([first.logits, first.hidden[2], found.logits, found.hidden[2], *kept])
        assert not torch.equal(found.behind[2][0], found.behind[2][1])
    for other in seen[1:]:
        assert all(torch.equal(one, two) for one, two in zip(seen[0], other, strict=True))


@pytest.mark.parametrize("tier", ["eager", "graph"])
def test_a_pass_with_probes_gives_what_one_without_gives(tier):
    """Bit for bit where both are equally wide: padded rows take other paths through the same arithmetic otherwise."""
    target, tree = tiny_target(tier, torch.float32), DraftTree.of(TOKENS, PARENTS)
    wide = DraftTree.of(TOKENS * 2, [*PARENTS, *range(len(TOKENS))])  # the same rows, with tokens for probes
    found = []
    for drafted, probe in ((tree, torch.randn(32)), (wide, None), (tree, None)):
        session = target.open(64, (2,)) if probe is None else SpecToken(probe).open(target, 64, (2,))
        session.prefill(PROMPT if probe is not None else [*PROMPT, 11])
        session.rewind(len(PROMPT))
        found.append(session.score(drafted).logits[: len(TOKENS)])
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], found[2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tier", ["eager", "graph"])
def test_a_prompt_in_pieces_has_the_same_probe_behind_it(tier):
    target, probe = tiny_target(tier), torch.randn(32, dtype=torch.float64)
    whole = SpecToken(probe).open(target, 64, (2,)).prefill(PROMPT)
    target.piece = 2
    session = SpecToken(probe).open(target, 64, (2,))
    pieces = session.prefill(PROMPT)
    assert session.length == len(PROMPT)
    for one, other in zip((whole.logits, whole.hidden[2], whole.behind[2]),
                          (pieces.logits, pieces.hidden[2], pieces.behind[2]), strict=True):  # fmt: skip
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_a_prompt_is_reported_and_may_be_stopped_chunk_by_chunk():
    target, seen = tiny_target(), list[tuple[int, int]]()
    target.piece = 4
    session = SpecToken(torch.randn(32, dtype=torch.float64)).open(target, 64, (2,))
    with on_prefill_progress(lambda done, total: seen.append((done, session.length))):
        session.prefill(PROMPT)
    assert len(seen) > 3 and all(done == cached for done, cached in seen[:-1])


def test_a_probe_sees_its_token_and_what_that_token_sees():
    """The probe below a node is a pass over the path to it with the probe's embedding behind: nothing else reaches it."""
    target = tiny_target()
    probe = torch.randn(32, dtype=torch.float64)
    session = SpecToken(probe).open(target, 64, (2,))
    first = session.prefill(PROMPT)
    found = session.score(DraftTree.of(TOKENS, PARENTS))
    shape = shape_of(tuple(PARENTS))
    embed = target.model.get_input_embeddings()
    for node in [None, *range(len(TOKENS))]:
        path = [] if node is None else [TOKENS[one] for one in shape.path(node)]
        embedded = torch.cat((embed(torch.tensor([*PROMPT, *path])), probe[None]))[None]
        wanted = target.model(inputs_embeds=embedded, output_hidden_states=True).hidden_states[2][0, -1]
        got = first.behind[2][0] if node is None else found.behind[2][node]
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


def test_a_perfect_draft_is_accepted_whole_and_none_at_all_still_goes_on():
    target, text = tiny_target(), baseline("eager", torch.float64, GREEDY)
    run = decode(target, foretold("owl", TREE, target, GREEDY, text), PROMPT, 80, GREEDY)
    assert [len(step.path) for step in run.steps] == [3] * 20 and run.ids == text[:80]
    alone = decode(target, compose("owl", TREE, target, WARM), PROMPT, 100, WARM, 7)
    assert sum(not step.path for step in alone.steps) > 10


def test_the_draft_depends_on_the_last_token_alone():
    """Two texts that the target thinks alike of at their last token draft the same tree, however long they are."""
    target = tiny_target()
    drafter = RecurrentDrafter(recurrent_net(target).runtime())
    state = {2: torch.randn(1, 32, dtype=torch.float64)}
    found = []
    for length in (3, 900):
        here = context([1] * length + [7], prompt=length)
        drafter.begin(here, SpecTokenPass(torch.zeros(1, 1), state, behind=state))
        found.append(drafter.levels(here).ask())
    assert torch.equal(*found)


def test_memory_drafts_where_it_is_sure_and_the_network_everywhere_else():
    target, memory = tiny_target(), {}
    kinds = []
    for _ in range(2):
        values = {**TREE, "bar": "fixed", "threshold": 2.0}
        run = decode(target, compose("howl", values, target, GREEDY, memory), PROMPT, 60, GREEDY)
        told = [step.notes[0].data for step in run.steps]
        assert all((one["half"] == "suffix") == (one["score"] >= 2.0) for one in told)
        assert all(one["length"] == step.position + 1 for one, step in zip(told, run.steps, strict=True))
        kinds.append(sum(one["half"] == "suffix" for one in told) / len(told))
    assert kinds[1] > 0.6 > kinds[0], "the second run knows the first one's text"


def test_a_weighed_bar_is_told_and_held():
    target, memory = tiny_target(), {}
    for _ in range(2):
        run = decode(target, compose("howl", TREE, target, GREEDY, memory), PROMPT, 60, GREEDY)
        told = [step.notes[0].data for step in run.steps]
        assert all((one["half"] == "suffix") == (0 < one["score"] >= one["threshold"]) for one in told)
        assert len({one["threshold"] for one in told}) > 5
    assert any(one["half"] == "suffix" for one in told)
