"""The measured tau is what speculative decoding would give: checked with drafts that are always, never or half right."""

import numpy as np
import pytest
import torch

from specviz.drafting.networks.small_lm import SmallConfig, SmallLM
from specviz.training import acceptance
from specviz.training.acceptance import chain_agreement
from specviz.training.data import Dialogues, Markers

MARKERS = Markers((1,), (3,), 2)


class Counting:
    """Foresees the next number, or nonsense after numbers that ``misses`` divides."""

    def __init__(self, misses):
        self.misses, self.bias, self.draft_ids = misses, torch.zeros(100), torch.arange(100)
        self.config = SmallConfig(vocab_size=100, hidden=4, draft_vocab=100, width=4, layers=1, heads=1)

    def head(self):
        return torch.eye(100)

    def features(self, previous, ids):
        wrong = (ids % self.misses == 0) if self.misses else torch.zeros_like(ids, dtype=torch.bool)
        return torch.nn.functional.one_hot((ids + 1).masked_fill(wrong, 0), 100).float()


def counting(length):
    tokens = np.array([7, 9, *range(10, 10 + length)])
    return Dialogues(tokens, np.array([0, len(tokens)]), np.array([2]), np.array([0.0]))


@pytest.mark.parametrize(
    ("misses", "length", "runs", "tau", "steps"),
    [(0, 40, 99, 5.0, 8), (1, 40, 99, 1.0, 36), (3, 60, 99, 3.0, 20), (0, 12, 99, 5.0, 2), (0, 60, 7, 5.0, 7)],
    ids=["always right", "never", "all but every third", "short", "no more steps than asked for"],
)
def test_steps_emit_what_was_foreseen_and_those_that_the_answers_end_cuts_are_left_out(misses, length, runs, tau, steps):
    found = chain_agreement(Counting(misses), counting(length), [0], MARKERS, depth=4, runs=runs)
    assert found["tau"] == pytest.approx(tau, abs=0.2) and found["steps"] == pytest.approx(steps, abs=2)


def test_chains_are_what_a_small_model_drafts_token_by_token():
    """Against drafting with its cache, each token fed back."""
    torch.manual_seed(0)
    config = SmallConfig(vocab_size=100, hidden=8, draft_vocab=50, width=16, layers=2, heads=2, inner=24, window=64)
    model = SmallLM(config, torch.randn(100, 8), torch.arange(0, 100, 2)).eval()
    for value in model.parameters():
        value.data.normal_(std=0.3)
    tokens = [7, 9]
    with torch.inference_mode():
        while len(tokens) < 40:  # mostly its own choice
            best = model.draft_ids[model(torch.tensor([1, *tokens]), model.open(64))[-1].argmax()]
            tokens.append(int(best) if len(tokens) % 5 else 11)
        lengths, done, depth = [], 0, 4
        while done + depth + 1 <= 38:
            drafted, right = list(tokens[: 2 + done]), 0
            for place in range(depth):
                drafted.append(int(model.draft_ids[model(torch.tensor([1, *drafted]), model.open(64))[-1].argmax()]))
                right += right == place and drafted[-1] == tokens[2 + done + place]
            lengths.append(right)
            done += right + 1
    dialogue = Dialogues(np.array(tokens), np.array([0, 40]), np.array([2]), np.array([0.0]))
    found = chain_agreement(model, dialogue, [0], MARKERS, depth)
    assert found["steps"] == len(lengths) and found["tau"] == pytest.approx(1 + np.mean(lengths)) and max(lengths) > 1


def test_figures_count_by_depth_alone_and_along_a_tree():
    ranks = torch.tensor([[0, 0, 5], [0, 3, 0], [1, 0, 0], [0, 0, 0]])
    found = acceptance.metrics(ranks, {(0,), (0, 0), (1,), (1, 0)}, alone=True)
    assert found["tau"] == 1 + 6 / 4 and found["tree"] == 1 + (2 + 1 + 2 + 2) / 4
    assert [found[f"first{depth}"] for depth in (1, 2, 3)] == pytest.approx([3 / 4, 2 / 3, 1 / 2])
    assert [found[f"five{depth}"] for depth in (1, 2, 3)] == pytest.approx([1.0, 1.0, 1 / 2])
    assert [found[f"alone{depth}"] for depth in (1, 2, 3)] == pytest.approx([3 / 4, 3 / 4, 3 / 4])
    assert acceptance.metrics(torch.zeros(0, 3, dtype=torch.long))["tau"] == 1.0
