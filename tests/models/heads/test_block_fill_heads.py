"""Block drafters that z-lab's package, DeepSpec and ``speculators`` wrote give here what their own models give, in two rounds.

The referees were run once, in an environment of their own: see ``tests/support/referee/block_fill.py``.
"""

import pytest
import torch
from safetensors.torch import load_file

from specviz.drafting.runtimes.fill_drafter import FillDrafter
from specviz.engine.interfaces import TargetPass
from specviz.errors import ModelUnavailable
from specviz.models.heads.published import read
from specviz.models.hub.published import layout_of
from tests.support.referee.block_fill import ROUNDS, states, text
from tests.support.referee.block_heads import FIT, FOLDER, HEADS, head_of, stored
from tests.support.rounds import context

LOGITS = load_file(FOLDER / "logits.safetensors")


@pytest.fixture(autouse=True)
def inference():
    """As a run drafts."""
    with torch.inference_mode():
        yield


def rounds(network):
    """The levels of both rounds, in one run of a drafter."""
    drafter, done = FillDrafter(network.runtime()), 0
    tokens, taps = text().tolist(), network.config.taps
    for number, anchor in enumerate(ROUNDS):
        here = context(tokens[: anchor + 1], number)
        if number == 0:
            drafter.begin(here, TargetPass(torch.zeros(1, 1), {tap: states((tap,))[:anchor] for tap in taps}))
        else:
            drafter._waiting.append(states(taps)[done:anchor])
        done = anchor
        levels = drafter.levels(here)
        yield levels


def along(levels, anchor):
    """The corrected logits [slot, support] along the true tokens."""
    given = [levels.ask()]
    for slot in range(1, levels.deepest):
        given.append(levels.ask(text()[anchor + slot : anchor + slot + 1], torch.tensor([0])))
    return torch.cat(given)


@pytest.mark.parametrize("name", HEADS)
def test_logits_of_both_rounds_are_those_of_the_package(tmp_path, name):
    network = head_of(stored(tmp_path, name))
    apart = 1e-6 if "speculators" in name else 1e-9  # the library's softmax is float32
    for number, (levels, anchor) in enumerate(zip(rounds(network), ROUNDS, strict=True)):
        given = along(levels, anchor)
        torch.testing.assert_close(levels.logits, LOGITS[f"{name}/marginal {number}"], rtol=0, atol=apart)
        if f"{name}/path {number}" in LOGITS:
            tokens, logits = [], given[:1]
            levels.trail = levels.trail[:1]
            while len(tokens) < levels.deepest:
                tokens.append(int(logits.argmax()))
                logits = logits if len(tokens) == levels.deepest else levels.ask(torch.tensor(tokens[-1:]), torch.tensor([0]))
            assert tokens == LOGITS[f"{name}/path {number}"].tolist()
        elif f"{name}/given {number}" in LOGITS:
            torch.testing.assert_close(given, LOGITS[f"{name}/given {number}"], rtol=0, atol=apart)
        if f"{name}/confidence {number}" in LOGITS:
            sure = LOGITS[f"{name}/confidence {number}"]
            torch.testing.assert_close(torch.cat(levels.rates), sure, rtol=0, atol=1e-6)


def test_a_draft_vocabulary_and_the_method_follow_from_the_tensors(tmp_path):
    narrow = head_of(stored(tmp_path / "narrow", "speculators dspark narrow"))
    assert len(narrow.draft_ids) == len(narrow.head) == 24
    # DeepSpec saves both of its drafters under one class.
    for name, method in (("deepspec dflash", "dflash"), ("deepspec dspark vanilla", "dspark")):
        repository = stored(tmp_path / method, name)
        assert repository.config["architectures"] == ["Qwen3DSparkModel"] and layout_of(repository).method == method
        assert head_of(repository).config.from_anchor
    with pytest.raises(ModelUnavailable, match="holds a DSpark drafter.*choose the method dspark"):
        read("dflash", stored(tmp_path / "other", "deepspec dspark vanilla"), FIT)


def test_rotary_pairs_of_neighbours_are_read_where_config_says_so(tmp_path):
    halves = head_of(stored(tmp_path / "halves", "dflash"))
    size = halves.config.head_size
    woven = torch.arange(size).view(2, -1).T.flatten()
    tensors = {}
    for name, value in halves.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            tensors[name] = value.unflatten(0, (-1, size))[:, woven].flatten(0, 1).contiguous()
        elif "q_norm" in name or "k_norm" in name:
            tensors[name] = value[woven].contiguous()
    pairs = head_of(stored(tmp_path / "pairs", "dflash", {"is_neox_style": False}, tensors))
    for ours, theirs in zip(rounds(pairs), rounds(halves), strict=True):
        torch.testing.assert_close(ours.ask(), theirs.ask(), rtol=0, atol=1e-12)
