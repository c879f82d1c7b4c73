"""Group normalisation for training on a processor: torch's own takes longer backwards there than all convolutions together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _Normalise(torch.autograd.Function):
    """[batch, place, group, member] to zero mean and unit variance over place and member."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        mean = x.mean(dim=(1, 3), keepdim=True, dtype=torch.float32)
        power = (x * x).mean(dim=(1, 3), keepdim=True, dtype=torch.float32)
        scale = (power - mean * mean).clamp_min(0).add(eps).rsqrt()
        unit = torch.addcmul((-mean * scale).to(x.dtype), x, scale.to(x.dtype))
        ctx.save_for_backward(unit, scale.to(x.dtype))
        return unit

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        unit, scale = ctx.saved_tensors
        grad = grads[0]
        along = (grad * unit).mean(dim=(1, 3), keepdim=True, dtype=torch.float32).to(grad.dtype)
        mean = grad.mean(dim=(1, 3), keepdim=True, dtype=torch.float32).to(grad.dtype)
        return torch.addcmul(grad - mean, unit, along, value=-1).mul_(scale), None


class FastGroupNorm(nn.GroupNorm):
    """The same function, and the same weights by name."""

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        places = x.permute(0, 2, 3, 1).reshape(batch, height * width, self.num_groups, -1)
        unit = _Normalise.apply(places, self.eps).view(batch, height, width, channels)
        return torch.addcmul(self.bias.to(x.dtype), unit, self.weight.to(x.dtype)).permute(0, 3, 1, 2)


def quicken(model: nn.Module) -> nn.Module:
    """Let every group norm of ``model`` train this way."""
    for part in model.modules():
        if type(part) is nn.GroupNorm:
            part.__class__ = FastGroupNorm
    return model
