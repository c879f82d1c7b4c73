"""The block drafter: what it drafts is what training computes, however the text was committed; DSpark's heads are conditional."""

import pytest
import torch

from specviz.drafting.networks.block_fill import MARKOV
from specviz.drafting.runtimes.fill_drafter import FillDrafter
from specviz.engine.interfaces import TargetPass
from tests.support.rounds import committed_round, context
from tests.support.tiny.networks import block_fill
from tests.support.tiny.text import tiny_target

TAPS = (1, 2)
LENGTH = 30


@pytest.fixture(autouse=True)
def inference():
    """As a run drafts."""
    with torch.inference_mode():
        yield


def written(seed=0):
    """Tokens of a made-up text and the target's hidden states, float64."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 48, (LENGTH,), generator=generator).tolist()
    return tokens, {tap: torch.randn(LENGTH, 32, generator=generator, dtype=torch.float64) for tap in TAPS}


def begun(network, until, slots=0, fixed=False):
    """A drafter whose root is the text's token at ``until``."""
    tokens, states = written()
    drafter = FillDrafter(network.runtime(), slots, fixed)
    prefill = TargetPass(torch.empty(1, 48), {tap: rows[:until] for tap, rows in states.items()})
    drafter.begin(context(tokens[: until + 1]), prefill)
    return drafter


def committed(drafter, start, count):
    """A round at root ``start`` that emitted ``count`` tokens."""
    tokens, states = written()
    hidden = {tap: rows[start : start + count] for tap, rows in states.items()}
    drafter.observe(committed_round(tokens[start + 1 : start + 1 + count], hidden, tokens[start]))


def levels_at(drafter, root, room=50):
    return drafter.levels(context(written()[0][: root + 1], room=room))


def block_at(drafter, root):
    """The logits [slot, support] of the block's marginals."""
    levels = levels_at(drafter, root)
    levels.ask()
    return levels.logits


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_blocks_of_fixed_shapes_and_addresses_are_the_same(kind):
    network = block_fill(tiny_target(), kind)
    eager, fixed, root = begun(network, 6), begun(network, 6, fixed=True), 6
    for count in (3, 1, 5):
        both = [levels_at(drafter, root) for drafter in (eager, fixed)]
        pairs = [tuple(levels.ask() for levels in both)]
        for slot in range(1, 4):
            tokens, parents = torch.tensor([slot, 9]), torch.tensor([0, 0 if slot == 1 else 1])
            pairs.append(tuple(levels.ask(tokens, parents) for levels in both))
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        for drafter in (eager, fixed):
            committed(drafter, root, count)
        root += count


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_a_text_committed_in_rounds_gives_the_block_of_a_fresh_start(kind):
    network = block_fill(tiny_target(), kind)
    drafter, root = begun(network, 6), 6
    for count in (3, 1, 5):
        block_at(drafter, root)
        committed(drafter, root, count)
        root += count
        torch.testing.assert_close(block_at(drafter, root), block_at(begun(network, root), root), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_all_blocks_of_a_text_in_one_pass_are_those_of_the_drafter(kind):
    network = block_fill(tiny_target(), kind)
    runtime, (tokens, states) = network.runtime(), written()
    anchors, text = torch.tensor([5, 11, 20]), torch.tensor(tokens)
    fused = runtime.fuse(torch.cat([states[tap] for tap in TAPS], dim=-1))
    outputs = runtime.blocks(fused, text, anchors)
    given = runtime.conditional_logits(outputs, text, anchors)
    for row, anchor in enumerate(anchors.tolist()):
        levels = levels_at(begun(network, anchor), anchor)
        along = [levels.ask()]
        torch.testing.assert_close(levels.logits, runtime.logits(outputs)[row], rtol=0, atol=1e-12)
        for slot in range(1, levels.deepest):
            along.append(levels.ask(text[anchor + slot : anchor + slot + 1], torch.tensor([0])))
        torch.testing.assert_close(torch.cat(along), given[row], rtol=0, atol=1e-12)


@pytest.mark.parametrize("markov", MARKOV)
def test_a_row_depends_on_the_tokens_above_it_alone(markov):
    network = block_fill(tiny_target(), "dspark", markov=markov)

    def down(path, beside):
        """The logits below ``path``, in a tree with another branch ``beside`` it."""
        levels, found = levels_at(begun(network, 8), 8), []
        levels.ask()
        parents = torch.zeros(2, dtype=torch.long)
        for ours, theirs in zip(path, beside, strict=True):
            found.append(levels.ask(torch.tensor([theirs, ours]), parents)[1])
            parents = torch.tensor([0, 1])
        return found

    same, other, changed = down([4, 9, 2], [1, 1, 1]), down([4, 9, 2], [30, 20, 10]), down([5, 9, 2], [1, 1, 1])
    for ours, theirs in zip(same, other, strict=True):
        assert torch.equal(ours, theirs)
    # A vanilla or gated head knows the token before, a recurrent one all of them.
    assert not torch.allclose(same[0], changed[0]) and torch.allclose(same[2], changed[2]) == (markov != "rnn")


def test_a_selector_gives_mass_to_its_candidates_alone():
    network = block_fill(tiny_target(), "dflash", draft=48, conv_taps=2, conv_group=8, candidates=6, rank=4)
    levels = levels_at(begun(network, 8), 8)
    first, second = levels.ask(), levels.ask(torch.tensor([3, 4]), torch.tensor([0, 0]))
    assert torch.isfinite(first).sum() == 6 and torch.isfinite(second).sum(1).tolist() == [6, 6]
    assert torch.equal(torch.isfinite(second[0]), torch.isfinite(second[1])) and not torch.equal(second[0], second[1])


def test_a_block_is_shorter_near_the_end_and_none_is_drafted_without_room():
    network = block_fill(tiny_target())
    assert levels_at(begun(network, 8), 8).deepest == 4
    assert levels_at(begun(network, 8, slots=2), 8).deepest == 2
    assert levels_at(begun(network, 8), 8, room=3).deepest == 2
    assert begun(network, 8).levels(context(written()[0][:9], room=1)) is None


def test_a_prompt_of_one_token_has_a_block_without_context():
    assert torch.isfinite(block_at(begun(block_fill(tiny_target()), 0), 0)).all()
