"""The drafter with a gated cross-attention: shut it is two plain layers; open it reads earlier thoughts and no others."""

import torch

from specviz.drafting.networks.cross_net import CrossConfig, CrossNet
from specviz.training.families.picture_drafters import PictureDialogueFeatures, unroll_cross

HIDDEN, VOCAB, ROWS = 24, 40, 12


def net(opened, seed=0):
    torch.manual_seed(seed)
    config = CrossConfig(VOCAB, HIDDEN, 3, 3, 8, 32, (0, 4), False, window=8)
    made = CrossNet(config, torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN)).double()
    with torch.no_grad():
        for value in made.parameters():
            if value.ndim == 2:
                value.normal_(std=value.shape[1] ** -0.5)
        made.reading.gates.fill_(opened)
    return made.requires_grad_(False)


def inputs(seed=1):
    torch.manual_seed(seed)
    positions = torch.tensor([0, 1, 5, 6, 9, *range(10, 10 + ROWS - 5)])  # gaps, as where visual tokens were dropped
    return torch.randn(ROWS, HIDDEN).double(), torch.randn(ROWS, HIDDEN).double(), positions


def test_with_its_gates_at_zero_it_is_the_two_decoder_layers_alone():
    shut = net(0.0)
    embedded, features, positions = inputs()
    later = torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1)
    shut.reach(int(positions[-1]) + 1)
    x = shut.enter(embedded)
    for layer in (shut.first, shut.last):
        x = shut.within(layer, x, positions, *shut.keys_values(layer, x, positions), later)
    assert torch.equal(shut.whole(embedded, features, positions)[0], shut.norm(x))
    assert torch.equal(shut.whole(embedded, features + 1, positions)[0], shut.norm(x))


def test_a_row_reads_only_thoughts_of_earlier_rows():
    opened = net(0.7)
    embedded, features, positions = inputs()
    before = opened.whole(embedded, features, positions)[0]
    for row in (0, 4, ROWS - 2):
        changed = features.clone()
        changed[row] += 1
        after = opened.whole(embedded, changed, positions)[0]
        assert torch.equal(after[: row + 1], before[: row + 1])
        assert (after[row + 1 :] - before[row + 1 :]).abs().amax(1).min() > 1e-9


def test_a_row_reads_only_words_up_to_its_own():
    opened = net(0.7)
    embedded, features, positions = inputs()
    before = opened.whole(embedded, features, positions)[0]
    embedded[6] += 1
    after = opened.whole(embedded, features, positions)[0]
    assert torch.equal(after[:6], before[:6]) and not torch.allclose(after[6], before[6])


def test_drafting_is_reading_ones_own_outputs_in_place_of_the_targets_thoughts():
    opened = net(0.7)
    embedded, features, positions = inputs()
    seen = PictureDialogueFeatures(torch.zeros(ROWS), torch.stack((embedded, features), 1), 3, positions)
    starts = torch.tensor([2, 5, 7])
    steps = unroll_cross(opened, seen, starts, 4)
    for place, start in enumerate(starts.tolist()):
        own = features.clone()
        for step in range(4):
            output = opened.whole(embedded, own, positions)[0][start + step]
            assert torch.allclose(steps[step][place], output, atol=1e-12)
            own[start + step] = output
