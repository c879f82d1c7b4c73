"""Warping, position-keyed noise, draws: every random number of a run is a pure function of seed, stream, place, token.

Noise is a counter-based hash, not a generator with state, so that a token drawn at absolute position t by a speculative
run is the very token the autoregressive run with the same seed draws there (a coupling: both take argmax of log p +
Gumbel(t)), and so that it is the same on every device and inside a captured graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from specviz.errors import BadInput

# Streams keep draws for different purposes independent of each other.
TARGET = 1
DRAFT = 2
ACCEPT = 3
EXTRA = 4

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, the SplitMix64 increment, as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_MASK = (1 << 64) - 1
# A nucleus is nearly always among so many best tokens, which cost far less to find than a sorted vocabulary.
_NUCLEUS = 2048


def _mix_host(value: int) -> int:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014) on a Python integer, result in [0, 2**64)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * (_MIX_1 & _MASK)) & _MASK
    value = ((value ^ (value >> 27)) * (_MIX_2 & _MASK)) & _MASK
    return value ^ (value >> 31)


def _mix(value: Tensor) -> Tensor:
    """The same finaliser on int64 tensors; torch shifts are arithmetic, so the copied sign bits are masked off."""
    value = (value ^ ((value >> 30) & ((1 << 34) - 1))) * _MIX_1
    value = (value ^ ((value >> 27) & ((1 << 37) - 1))) * _MIX_2
    return value ^ ((value >> 31) & ((1 << 33) - 1))


@lru_cache(maxsize=32)
def _weyl(size: int, device: str) -> Tensor:
    """int64 [size]: 1, 2, 3, … times the increment. Read only, as it is shared between runs."""
    with torch.inference_mode(False):
        return torch.arange(1, size + 1, dtype=torch.long, device=device) * _GOLDEN


@dataclass(frozen=True)
class Noise:
    """Random numbers keyed by place. ``seed`` is the run's."""

    seed: int

    def _key(self, stream: int, *place: int) -> int:
        key = _mix_host(self.seed * 2 + 1)
        for part in (stream, *place):
            key = _mix_host(key + (part + 1) * (_GOLDEN & _MASK))
        return key

    def uniform(self, stream: int, *place: int) -> float:
        """One number in (0, 1), for instance the draw against an acceptance threshold."""
        return ((self._key(stream, *place) >> 12) + 0.5) * 2.0**-52

    def uniforms(self, size: int, stream: int, *place: int, device: torch.device | str = "cpu") -> Tensor:
        """float64 [size] in (0, 1), one for each token id."""
        key = self._key(stream, *place)
        signed = key - (1 << 64) if key >= (1 << 63) else key
        counter = _weyl(size, str(device)) + signed
        # 52 bits and a half: one bit more would round the largest up to 1, whose Gumbel noise is infinite.
        bits = (_mix(counter) >> 12) & ((1 << 52) - 1)
        return (bits.to(torch.float64) + 0.5) * 2.0**-52

    def gumbel(self, size: int, stream: int, *place: int, device: torch.device | str = "cpu") -> Tensor:
        """float64 [size] of standard Gumbel noise, one for each token id."""
        return self.uniforms(size, stream, *place, device=device).log_().neg_().log_().neg_()


@dataclass(frozen=True)
class Warp:
    """Temperature, then top-k, then top-p, in the order transformers applies them."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and 0.0 <= self.temperature <= 5.0):
            raise BadInput(f"temperature is {self.temperature}; choose a number from 0 (greedy) to 5.")
        if not 0.0 < self.top_p <= 1.0:
            raise BadInput(f"top_p is {self.top_p}; choose a number above 0 and at most 1 (1 keeps every token).")
        if self.top_k < 0:
            raise BadInput(f"top_k is {self.top_k}; choose 0 (keep every token) or a positive number.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Warped log p, float32 (float64 for float64 logits) [..., vocab], -inf outside the support.

        At temperature 0 there is no warped law but a point mass; this then gives the plain log-softmax, for the screen.
        """
        scores = logits if logits.dtype == torch.float64 else logits.float()
        if self.greedy:
            return torch.log_softmax(scores, -1)
        scores = scores / self.temperature
        if 0 < self.top_k < scores.shape[-1]:
            floor = scores.topk(self.top_k, dim=-1).values[..., -1:]
            scores = scores.masked_fill(scores < floor, -math.inf)
        if self.top_p < 1.0:
            scores = self._nucleus(scores)
        return torch.log_softmax(scores, -1)

    def _nucleus(self, scores: Tensor) -> Tensor:
        """Keep the smallest set of likeliest tokens whose mass reaches ``top_p`` (Holtzman et al., arXiv 1904.09751).

        Tokens that tie with the last one kept are kept too, so that the law does not hang on how a sort orders equals.
        """
        total = torch.logsumexp(scores, -1, keepdim=True)
        vocab = scores.shape[-1]
        # Asking whether few were enough would wait for a GPU, which sorts fast anyway.
        few = min(_NUCLEUS, vocab) if scores.device.type == "cpu" else vocab
        ordered = scores.topk(few, dim=-1).values
        mass = (ordered - total).exp().cumsum(-1)
        if few < vocab and bool((mass[..., -1] < self.top_p).any()):
            ordered = scores.sort(dim=-1, descending=True).values
            mass = (ordered - total).exp().cumsum(-1)
        kept = (mass < self.top_p).sum(-1, keepdim=True).clamp_max(ordered.shape[-1] - 1)
        return scores.masked_fill(scores < ordered.gather(-1, kept), -math.inf)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Warped p [..., vocab], rows summing to 1. At temperature 0 a one-hot row on the largest logit."""
        if self.greedy:
            wide = logits if logits.dtype == torch.float64 else logits.float()
            return torch.zeros_like(wide).scatter(-1, wide.argmax(-1, keepdim=True), 1.0)
        return self.log_probabilities(logits).exp()

    def choose(self, logits: Tensor, positions: Sequence[int], noise: Noise, stream: int = TARGET) -> Tensor:
        """The target's own token at each row, int64 [row]: row i is drawn with the noise of absolute ``positions[i]``.

        ``positions`` are those of the token being chosen (one past the node whose row it is).
        """
        if self.greedy:
            return logits.argmax(-1)
        rows = self.log_probabilities(logits)
        found = {}
        for place in set(positions):
            found[place] = noise.gumbel(rows.shape[-1], stream, place, device=rows.device)
        gumbel = torch.stack([found[place] for place in positions])
        return (rows.double() + gumbel).argmax(-1)


def draw(probability: Tensor, noise: Noise, *place: int, stream: int = TARGET) -> int:
    """One token from a [vocab] law (need not sum to 1), by the Gumbel-max rule with the noise of ``place``."""
    gumbel = noise.gumbel(probability.shape[-1], stream, *place, device=probability.device)
    return int((probability.double().log() + gumbel).argmax())
