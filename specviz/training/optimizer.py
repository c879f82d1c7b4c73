"""Optimizer: Muon for matrices, Adam for all other parameters, and an exponential average of the weights.

Muon: Jordan et al. 2024, "Muon: an optimizer for hidden layers". torch's implementation orthogonalises in bfloat16, which is
fifty times slower than float32 on CPUs without bfloat16 arithmetic. This implementation uses the weights' dtype by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from specviz.drafting.networks.lora import TALL, WIDE

_MOMENTUM = 0.95
_QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrix: Tensor, rounds: int = 5) -> Tensor:
    """Return ``matrix`` [row, column] with all singular values set to about 1, by Newton-Schulz iteration."""
    a, b, c = _QUINTIC
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(rounds):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class Optimizer:
    """Optimizer that updates named parameters in place. ``state``: tensors by name, for checkpoints."""

    def __init__(
        self, parameters: Mapping[str, Tensor], average: float = 0.99,
        stacked: Mapping[str, int] | None = None, fast_dtype: torch.dtype | None = None,
        rate_factors: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        """``average``: decay factor of the averaged weights.

        ``stacked``: number of equal matrices stacked in a parameter, such as the gates of a recurrence, which are orthogonalised
        separately. ``fast_dtype``: dtype for orthogonalising; None: that of the weights. ``rate_factors``: factors on the
        learning rate, by parameter.
        """
        self.fast_dtype = fast_dtype
        self.rate_factors = dict(rate_factors or {})
        self.parameters = dict(parameters)
        self.stacked = dict(stacked or {})
        self.average = average
        self.updates = 0
        zeros = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        self.state = {f"first.{name}": value for name, value in zeros.items()}
        self.state |= {f"second.{name}": value.clone() for name, value in zeros.items() if value.ndim != 2}
        self.state |= {f"mean.{name}": value.detach().clone() for name, value in self.parameters.items()}

    def step(self, gradients: Mapping[str, Tensor], rate: float, decay: float = 0.0, workers: int = 1) -> None:
        """Make one update at learning rate ``rate``. The weights of a matrix change by 0.2 times ``rate`` (root mean square).

        ``decay``: weight decay. ``workers``: threads that share the parameters, for callers that limit torch to one thread.
        """
        self.updates += 1
        names = sorted(self.parameters, key=lambda name: -self.parameters[name].numel())
        with ThreadPoolExecutor(max(1, workers)) as pool:
            list(pool.map(lambda name: self._move(name, gradients[name], rate, decay), names))

    @torch.no_grad()
    def _move(self, name: str, gradient: Tensor, rate: float, decay: float) -> None:
        value, rate = self.parameters[name], rate * self.rate_factors.get(name, 1.0)
        first = self.state[f"first.{name}"]
        if value.ndim == 2:
            first.lerp_(gradient, 1 - _MOMENTUM)
            ahead = gradient.lerp(first, _MOMENTUM).chunk(self.stacked.get(name, 1))
            moves = [orthogonalise(matrix if self.fast_dtype is None else matrix.to(self.fast_dtype)) for matrix in ahead]
            move = torch.cat([one.to(gradient) * (0.2 * max(one.shape) ** 0.5) for one in moves])
        else:  # Adam
            first.lerp_(gradient, 0.1)
            second = self.state[f"second.{name}"].lerp_(gradient.square(), 0.02)
            move = (first / (1 - 0.9**self.updates)) / ((second / (1 - 0.98**self.updates)).sqrt() + 1e-10)
        value.mul_(1 - rate * decay).sub_(move, alpha=rate)
        keep = min(self.average, self.updates / (self.updates + 10))
        self.state[f"mean.{name}"].lerp_(value, 1 - keep)

    def averaged(self) -> dict[str, Tensor]:
        """Return the averaged weights by parameter."""
        return {name: self.state[f"mean.{name}"] for name in self.parameters}


class LowRank:
    """A low-rank change to every matrix of a network. Training updates ``factors``; :meth:`put` applies the change.

    Tall factors start at zero, wide factors with orthonormal rows, so the initial change is zero. ``rest``: whether training also
    updates all other parameters, in full.
    """

    def __init__(self, net: nn.Module, rank: int, rest: bool = False) -> None:
        self.matrices = {name: value for name, value in net.named_parameters() if value.ndim == 2}
        self.rest = {name: value for name, value in net.named_parameters() if rest and value.ndim != 2}
        self.factors = {name: value.data for name, value in self.rest.items()}
        self._base = {name: value.detach().clone() for name, value in self.matrices.items()}
        generator = torch.Generator().manual_seed(0)
        for name, value in self._base.items():
            rows, columns = value.shape
            least = min(rank, rows, columns)
            random = torch.randn(columns, least, generator=generator, dtype=torch.float64)
            self.factors[name + TALL] = value.new_zeros(rows, least)
            self.factors[name + WIDE] = torch.linalg.qr(random).Q.T.contiguous().to(value)
        for name, value in net.named_parameters():
            value.requires_grad_(name in self.leaves)

    @property
    def leaves(self) -> dict[str, Tensor]:
        """Parameters of the network whose gradients training needs."""
        return {**self.matrices, **self.rest}

    @torch.no_grad()
    def put(self) -> None:
        """Set the network's matrices to the original ones plus the products of the factors."""
        for name, value in self.matrices.items():
            value.copy_(torch.addmm(self._base[name], self.factors[name + TALL], self.factors[name + WIDE]))

    def gradients(self, leaf_gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the gradients of the factors from the gradients of :attr:`leaves`."""
        factor_gradients = {name: leaf_gradients[name] for name in self.rest}
        for name in self.matrices:
            gradient = leaf_gradients[name]
            factor_gradients[name + TALL] = gradient @ self.factors[name + WIDE].T
            factor_gradients[name + WIDE] = self.factors[name + TALL].T @ gradient
        return factor_gradients
