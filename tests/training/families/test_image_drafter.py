"""Making a picture drafter: where it begins, what it is asked for, and how often a picture is learned from."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from specviz.drafting.networks.feature_net import FeatureConfig, FeatureNet
from specviz.training.families.image_drafter import (
    SHELF,
    TIMES,
    Example,
    Examples,
    drafted,
    linear_start,
    loss,
)


def test_the_drafters_head_starts_as_what_the_feature_before_tells() -> None:
    """Each feature follows from the one before, and logits from it: the first head goes two ways at once."""
    torch.manual_seed(0)
    onwards, told = torch.linalg.qr(torch.randn(6, 6))[0], torch.randn(9, 6)
    features = [torch.randn(2, 1, 6)]
    for _ in range(40):
        features.append(features[-1] @ onwards.T)
    whole = torch.cat(features, dim=1)
    example = Example(torch.zeros(2, 41, dtype=torch.long), whole, torch.zeros(37, 9))
    drafter = SimpleNamespace(head=nn.Parameter(torch.zeros(9, 6)))
    linear_start(drafter, [example], lambda hidden: hidden @ told.T)  # type: ignore[arg-type]
    found, right = drafter.head.detach(), told @ onwards
    before, after = whole[:, 2:-2].flatten(0, 1), whole[:, 3:-1].flatten(0, 1) @ told.T
    assert F.cosine_similarity(found.flatten(), right.flatten(), dim=0) > 0.95
    assert (before @ found.T - after).square().mean() < after.square().mean() / 2


def tiny_drafter() -> tuple[FeatureNet, Example]:
    torch.manual_seed(0)
    config = FeatureConfig(vocab_size=30, hidden=8, heads=2, kv_heads=2, head_size=4, inner=12, taps=(2,), wide=False, theta=1e4)
    net = FeatureNet(config, torch.randn(30, 8), torch.randn(20, 8), None)
    distribution = torch.randn(16, 20).log_softmax(-1)
    tokens = torch.cat((torch.randint(0, 10, (2, 4)), torch.randint(10, 30, (16,)).expand(2, -1)), dim=1)
    return net, Example(tokens, torch.randn(2, 20, 8), distribution)


def test_late_a_drafters_loss_also_counts_what_both_distributions_have_in_common() -> None:
    net, example = tiny_drafter()
    rows = example.starts(torch.Generator().manual_seed(0))
    assert rows[0].tolist() == list(range(2, 18)) and set(rows[2].tolist()) <= set(rows[1].tolist()) < set(rows[0].tolist())
    found = [distribution for _, distribution, _ in drafted(net, example, rows, 2.0)]
    assert [one.shape for one in found] == [(len(part), 20) for part in rows]
    plain, late = (float(loss(net, example, rows, 2.0, common).detach()) for common in (0.0, 1.0))
    shared = 0.0
    for step, (distribution, part) in enumerate(zip(found, rows, strict=True)):
        wanted = example.distribution[part + step - 2]  # the prompt's four tokens less the two that a start is ahead
        shared -= 0.8**step * float(torch.minimum(distribution.exp(), wanted.exp()).sum(-1).log().mean().detach())
    assert late == pytest.approx(plain + shared, rel=1e-5) and shared > 0


def test_a_picture_is_learned_from_so_many_times_and_then_leaves_the_shelf(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = Examples.__new__(Examples)
    examples.shelf, examples.generator, made = [], np.random.default_rng(0), iter(range(10**6))
    monkeypatch.setattr(examples, "fresh", lambda count: [next(made) for _ in range(2 * count)])
    seen = [examples.next() for _ in range(4000)]
    assert len(examples.shelf) <= SHELF
    gone = set(seen) - {one for one, _ in examples.shelf}
    assert len(gone) > 300 and all(seen.count(one) == TIMES for one in gone)
    assert len(set(seen[:20])) > 15  # by chance, and not one after the other
