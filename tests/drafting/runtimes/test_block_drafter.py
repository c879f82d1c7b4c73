"""The block drafter: what it drafts is what training computed, however the text was committed and whichever branch it is."""

import pytest
import torch

from specviz.drafting.runtimes.block_drafter import BlockDrafter
from specviz.engine.interfaces import TargetPass
from tests.support.rounds import committed_round, context
from tests.support.tiny.networks import TAP, block_net
from tests.support.tiny.text import tiny_target


def whole(network, tokens, features):
    """Training's forward over a committed text: its last k outputs, blocks laid so that the last one ends with the text.

    ``features`` [input, hidden] are those of inputs 0 …, ``tokens`` the tokens after each.
    """
    found = network(torch.tensor([tokens]), features[None], phase=len(tokens) % network.block)
    return found[0, -network.block :]


def random_text(length, seed=0):
    """Tokens and features of a made-up text, float64."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 48, (length,), generator=generator).tolist()
    return tokens, torch.randn(length, 32, generator=generator, dtype=torch.float64)


def started(network, tokens, features, fixed=False):
    """A drafter that begins with inputs 0 …: the text's first token has no input, so any will do."""
    drafter = BlockDrafter(network, fixed)
    drafter.begin(context([0, *tokens]), TargetPass(torch.empty(1, 48), {TAP: features}))
    return drafter


def committed(drafter, tokens, features):
    drafter.observe(committed_round(tokens, {TAP: features}))


def level(tokens, parents):
    return torch.tensor(tokens), torch.tensor(parents)


@torch.inference_mode()
def root(drafter):
    """The logits [k, support] of the first block, below whichever token."""
    levels = drafter.levels(context([0]))
    if levels is None:
        return None
    found = [levels.ask(), *(levels.ask(*level([11], [0])) for _ in range(1, drafter.network.block))]
    return [torch.cat(found)]


@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.parametrize("length", [3, 4, 5, 6, 11, 12, 13])
def test_a_committed_text_of_any_length_is_drafted_from_as_it_was_trained(block, length):
    network = block_net(tiny_target(), block)
    tokens, features = random_text(length)
    found = root(started(network, tokens, features))
    torch.testing.assert_close(found[0], network.logits(whole(network, tokens, features)))


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("pieces", [[1], [2], [1, 1], [3, 2], [1, 2, 3, 1], [6]])
@torch.inference_mode()
def test_how_many_tokens_each_round_committed_makes_no_difference(pieces, fixed):
    network = block_net(tiny_target())
    tokens, features = random_text(7 + sum(pieces))
    drafter, place = started(network, tokens[:7], features[:7], fixed), 7
    for number, piece in enumerate(pieces):
        if number % 2:  # with and without a draft in between, which must leave nothing behind
            levels = drafter.levels(context([0]))
            levels.ask()
            levels.ask(*level([11, 12], [0, 0]))
            levels.ask(*level([13, 14], [0, 1]))
        committed(drafter, tokens[place : place + piece], features[place : place + piece])
        place += piece
    torch.testing.assert_close(root(drafter)[0], network.logits(whole(network, tokens, features)))


def follow(
    network, tokens, features, chain, block
):  # fmt: skip
    """Training's forward along one branch: after every block its own features are what the next one reads."""
    found = [whole(network, tokens, features)]
    for start in range(0, len(chain), block):
        tokens = [*tokens, *chain[start : start + block]]
        features = torch.cat((features, found[-1]))
        found.append(whole(network, tokens, features))
    return found


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("length", [6, 7])
@torch.inference_mode()
def test_every_branch_is_drafted_as_if_it_were_the_text(length, fixed):
    network = block_net(tiny_target())
    tokens, features = random_text(length)
    levels = started(network, tokens, features, fixed).levels(context([0]))
    levels.ask()
    levels.ask(*level([11, 12], [0, 0]))
    first = levels.ask(*level([13, 15], [0, 1]))
    inside = levels.ask(*level([21, 24], [0, 1]))
    second = levels.ask(*level([23, 25, 22], [0, 1, 0]))
    for logits, more, chain in zip(first, inside, ([11, 13], [12, 15]), strict=True):
        expected = network.logits(follow(network, tokens, features, chain, 2)[-1])
        torch.testing.assert_close(torch.stack((logits, more)), expected)
    for logits, chain in zip(second, ([11, 13, 21, 23], [12, 15, 24, 25], [11, 13, 21, 22]), strict=True):
        expected = follow(network, tokens, features, chain, 2)[-1]
        torch.testing.assert_close(logits, network.logits(expected)[0])


def test_a_block_is_seen_whole_and_what_follows_is_not():
    network = block_net(tiny_target())
    tokens, features = random_text(8)
    plain = network(torch.tensor([tokens]), features[None], phase=0)[0]
    for changed in range(8):
        other = features.clone()
        other[changed] += 1
        moved = (network(torch.tensor([tokens]), other[None], phase=0)[0] - plain).abs().amax(-1) > 1e-9
        assert moved.tolist() == [place >= changed - changed % 2 for place in range(8)]


@torch.inference_mode()
def test_distributions_inside_a_block_are_the_same_under_every_parent_and_cost_no_forward():
    network = block_net(tiny_target())
    drafter = started(network, *random_text(9))
    levels = drafter.levels(context([0]))
    top, below = levels.ask(), levels.ask(*level([4, 5], [0, 0]))
    assert drafter.calls() == 1
    assert torch.equal(below[0], below[1]) and not torch.equal(top[0], below[0])
    deep = levels.ask(*level([6, 7], [0, 1]))
    assert not torch.equal(deep[0], deep[1])
    assert drafter.calls() == 1 and torch.equal(drafter.support, network.draft_ids)


@pytest.mark.parametrize("length", [0, 1])
def test_less_than_a_block_of_text_gives_no_draft_until_there_is_more(length):
    network = block_net(tiny_target())
    tokens, features = random_text(6)
    if length:
        drafter = started(network, tokens[:length], features[:length])
    else:
        drafter = BlockDrafter(network)
        drafter.begin(context([0]), None)
    assert root(drafter) is None
    assert drafter.calls() == 0
    committed(drafter, tokens[length:], features[length:])
    torch.testing.assert_close(root(drafter)[0], network.logits(whole(network, tokens, features)))


def test_a_second_run_remembers_nothing_of_the_first():
    network = block_net(tiny_target())
    drafter = started(network, *random_text(9, seed=3))
    committed(drafter, *random_text(4, seed=4))
    drafter.close()
    tokens, features = random_text(6)
    drafter.begin(context([0, *tokens]), TargetPass(torch.empty(1, 48), {TAP: features}))
    torch.testing.assert_close(root(drafter)[0], network.logits(whole(network, tokens, features)))


def test_a_text_longer_than_was_planned_for_still_fits():
    network = block_net(tiny_target())
    tokens, features = random_text(1400)
    drafter = started(network, tokens[:20], features[:20])
    committed(drafter, tokens[20:], features[20:])
    torch.testing.assert_close(root(drafter)[0], network.logits(whole(network, tokens, features)))
