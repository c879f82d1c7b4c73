"""The masked language model: it looks both ways, sees masks as masks, comes off the disk as it was, and drafts at once."""

import pytest
import torch
import torch.nn.functional as F

from specviz.drafting.networks.lora import merge_lora
from specviz.drafting.trees.sampled import Sampled
from specviz.engine.tree import chain
from specviz.methods.diffuspec.lattice import MaskedBlock
from specviz.models.heads.heads import with_lora
from specviz.training.families.gto import LowRank
from tests.support.rounds import context
from tests.support.tiny.networks import masked_lm
from tests.support.tiny.text import tiny_target

TARGET = tiny_target()
TEXT = torch.randint(0, 48, (20,), generator=torch.Generator().manual_seed(2))


def test_a_row_sees_what_comes_after_it_but_not_behind_a_mask():
    model = masked_lm(TARGET)
    blank = torch.zeros(1, 20, dtype=torch.bool)
    blank[0, 10] = True
    before = model.features(TEXT[None], blank)
    later, hidden = TEXT.clone(), TEXT.clone()
    later[15], hidden[10] = (later[15] + 1) % 48, (hidden[10] + 1) % 48
    assert (model.features(later[None], blank)[0, 3] != before[0, 3]).any(), "both ways"
    torch.testing.assert_close(model.features(hidden[None], blank), before)


def test_padding_changes_nothing():
    model = masked_lm(TARGET)
    blank = torch.zeros(1, 20, dtype=torch.bool)
    blank[0, 12:] = True
    wide, seen = F.pad(TEXT[None], (0, 7), value=3), torch.arange(27)[None] < 20
    found = model.features(wide, F.pad(blank, (0, 7)), seen)[:, :20]
    torch.testing.assert_close(found, model.features(TEXT[None], blank))


def test_a_step_gives_each_mask_the_distribution_of_the_row_before_it():
    model = masked_lm(TARGET)
    ids, blank = F.pad(TEXT, (0, 5)), torch.arange(25) >= 20
    rows = model.features(ids[None], blank[None])[0, 19:24]
    torch.testing.assert_close(model(TEXT, 5), F.linear(rows, model.head(), model.bias))


@pytest.mark.parametrize("window", [16, 512])
def test_a_pass_of_fixed_shape_gives_what_one_of_the_texts_own_length_gives(window):
    model = masked_lm(TARGET, window=window)
    eager, fixed = (MaskedBlock(model, 4, kind) for kind in (False, True))
    for length in (3, 20, 9):
        here = context(TEXT[:length].tolist())
        for drafter in (eager, fixed):
            drafter.begin(here, None)
        torch.testing.assert_close(fixed.block(here, 4), eager.block(here, 4))
        fixed.close()


def test_a_long_text_is_read_as_far_back_as_the_window():
    model = masked_lm(TARGET, window=16)
    torch.testing.assert_close(model(TEXT, 4), model(TEXT[-12:], 4))
    changed_ = TEXT.clone()
    changed_[8] = (changed_[8] + 1) % 48
    assert (model(changed_, 4) != model(TEXT, 4)).any()
    with pytest.raises(ValueError, match="1 to 15 masks"):
        model(TEXT, 16)
    with pytest.raises(ValueError, match="window of 16"):
        model.features(TEXT[None], torch.zeros(1, 20, dtype=torch.bool))


def test_a_change_to_a_model_that_has_drafted_changes_what_the_copy_drafts():
    """The folded head of the original must not travel with the copy."""
    model = masked_lm(TARGET)
    before = model(TEXT, 4)
    change = LowRank(masked_lm(TARGET), 3)
    factors = {name: value + 0.1 for name, value in change.factors.items()}
    copy = with_lora(model, factors, "a change")
    fresh = masked_lm(TARGET)
    merge_lora(fresh, factors, "a change")
    torch.testing.assert_close(copy(TEXT, 4), fresh(TEXT, 4))
    torch.testing.assert_close(model(TEXT, 4), before)
    assert copy.embedding is model.embedding and (copy(TEXT, 4) != before).any()


def test_greedy_blocks_are_each_place_s_likeliest_token():
    model = masked_lm(TARGET)
    draft = Sampled(chain(6)).build(MaskedBlock(model, 6), context(TEXT.tolist()))
    assert list(draft.tree.host_tokens[1:]) == model.draft_ids[model(TEXT, 6).argmax(-1)].tolist()
    assert draft.calls == 1 and not draft.proposals
    (note,) = draft.notes
    assert [place["tokens"][0] for place in note.data["places"]] == list(draft.tree.host_tokens[1:])
    assert draft.confidence[1] == pytest.approx(note.data["places"][0]["probability"][0])


def test_no_room_no_block():
    model = masked_lm(TARGET)
    for room, nodes in ((1, 1), (2, 2), (4, 4), (50, 7)):
        draft = Sampled(chain(6)).build(MaskedBlock(model, 6), context(TEXT.tolist(), room=room))
        assert len(draft.tree) == nodes
    with pytest.raises(ValueError, match="does not fit"):
        MaskedBlock(model, 64)
