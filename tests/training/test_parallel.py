"""Gradients on all cores: the same as of one part after another, whatever autocast keeps between the parts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.training import parallel


@pytest.mark.parametrize("workers", [1, 2])
def test_what_autocast_keeps_changes_no_gradient(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts share the casts of one update and no more; a pass without gradients before the loss takes none of them away."""
    monkeypatch.setattr(parallel, "products", lambda device: torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(16, 16, generator=generator, requires_grad=True)
    head = torch.randn(8, 16, generator=generator)
    parallel.keep_cast(head)
    parts = list(torch.randn(6, 4, 16, generator=generator))

    def loss(part: Tensor) -> Tensor:
        with torch.no_grad():
            shown = F.linear(part, weight).mean()
        return F.linear(F.linear(part, weight) + shown, head).float().square().mean()

    def alone(part: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            value = loss(part)
        return torch.autograd.grad(value, weight)[0]

    for _ in range(3):  # the weights move in between: a cast of the last update would show
        (gradient,), _ = parallel.gradients(parts, loss, [weight], workers)
        expected = torch.stack([alone(part) for part in parts]).sum(0)
        assert torch.allclose(gradient, expected, rtol=1e-3, atol=1e-4) and expected.abs().max() > 0.1
        with torch.no_grad():
            weight.add_(gradient, alpha=0.05)
