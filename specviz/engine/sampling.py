"""Warping and position-keyed noise: each random number of a run is a pure function of seed, stream, position and token.

Noise is a counter-based hash, not a stateful generator. A speculative run therefore draws at absolute position t the very token
that the autoregressive run with the same seed draws. Both take the argmax of p over the exponential noise of t (a coupling). The
noise is the same on all devices and inside captured graphs.

Rejection sampling is exact only if a draft is independent of the random numbers that judge it. A drafter that outlives a run has
learned from that run's numbers. The next run then needs another *generation* of the noise, even with the same seed. The target's
own tokens use the same noise in all generations, because sample-and-match is exact for any draft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specviz.engine.to_device import device_cache, to_device
from specviz.errors import BadInput

# Streams keep draws for different purposes independent.
TARGET = 1
DRAFT = 2
ACCEPT = 3
EXTRA = 4

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, the SplitMix64 increment, as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_MASK = (1 << 64) - 1
# A nucleus nearly always fits into this many top tokens. Finding them is far cheaper than sorting the vocabulary.
_NUCLEUS = 2048
# Below this temperature, the largest logit is subtracted first.
_COLD = 1e-6


def _mix_host(value: int) -> int:
    """Apply SplitMix64's finaliser (Steele, Lea, Flood 2014) to a Python integer; the result is in [0, 2**64)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * (_MIX_1 & _MASK)) & _MASK
    value = ((value ^ (value >> 27)) * (_MIX_2 & _MASK)) & _MASK
    return value ^ (value >> 31)


def _mix(value: Tensor) -> Tensor:
    """Apply SplitMix64's finaliser to an int64 tensor in place; torch shifts are arithmetic, so sign bits are masked off."""
    value.bitwise_xor_((value >> 30).bitwise_and_((1 << 34) - 1)).mul_(_MIX_1)
    value.bitwise_xor_((value >> 27).bitwise_and_((1 << 37) - 1)).mul_(_MIX_2)
    return value.bitwise_xor_((value >> 31).bitwise_and_((1 << 33) - 1))


def _uniform(counters: Tensor) -> Tensor:
    """Map int64 counters, which are overwritten, to float64 in (0, 1).

    52 bits plus a half: one bit more would round the largest value up to 1, whose Gumbel noise is infinite.
    """
    return (_mix(counters) >> 12).bitwise_and_((1 << 52) - 1).to(torch.float64).add_(0.5).mul_(2.0**-52)


@device_cache(32)
def counters(size: int, device: torch.device | str) -> Tensor:
    """Return the counters of a place, int64 [size]: 1, 2, 3, … times the increment.

    Shared by runs, so read-only. A captured graph must hold a reference while in use.
    """
    with torch.inference_mode(False):
        return torch.arange(1, size + 1, dtype=torch.long, device=device) * _GOLDEN


def exponentials_of(keys: Tensor, counts: Tensor) -> Tensor:
    """Return standard exponential noise, float64 [place, size], from the places' ``keys`` and :func:`counters`."""
    return _uniform(counts + keys[:, None]).log_().neg_()


def keys_below(key: Tensor, numbers: Tensor) -> Tensor:
    """Return the noise keys, int64 [place], of the places that extend the place of ``key`` [1] by ``numbers`` [place]."""
    return _mix((numbers + 1) * _GOLDEN + key)


@dataclass(frozen=True)
class Noise:
    """Random numbers keyed by place: integers such as a position, or a round and a node.

    ``seed``: the run's seed. ``trajectory``: number of a preliminary decoding for a run, from 1; 0 for the run itself.
    ``generation``: number of earlier runs that the drafter learned from. Each combination has independent numbers.
    """

    seed: int
    trajectory: int = 0
    generation: int = 0

    @property
    def coupled(self) -> Noise:
        """Noise of the target's own tokens, shared by the runs with this seed, the autoregressive run included."""
        return replace(self, generation=0) if self.generation else self

    def _key(self, stream: int, *place: int) -> int:
        """Return the key of a place as a signed 64-bit integer."""
        plain = not (self.trajectory or self.generation)
        key = _mix_host(self.seed * 2 + plain)  # odd for plain runs, even for others
        for part in (*(() if plain else (self.trajectory, self.generation)), stream, *place):
            key = _mix_host(key + (part + 1) * (_GOLDEN & _MASK))
        return key - (1 << 64) if key >= (1 << 63) else key

    def uniform(self, stream: int, *place: int) -> float:
        """Return one number in (0, 1), for example the draw against an acceptance threshold."""
        return (((self._key(stream, *place) & _MASK) >> 12) + 0.5) * 2.0**-52

    def exponential(self, size: int, stream: int, *place: int, device: torch.device | str = "cpu") -> Tensor:
        """Return standard exponential noise E, float64 [size], one number per token id.

        The argmax of p / E is a draw from p. It equals the argmax of log p + Gumbel noise (-log E), but saves a logarithm.
        """
        return _uniform(counters(size, device) + self._key(stream, *place)).log_().neg_()

    def exponentials(
        self, size: int, stream: int, places: Sequence[tuple[int, ...]], device: torch.device | str = "cpu"
    ) -> Tensor:
        """Return the noise of :meth:`exponential` at each of ``places``, float64 [place, size], in as few operations as for one
        place."""
        return exponentials_of(self.keys(stream, places, device), counters(size, device))

    def keys(self, stream: int, places: Sequence[tuple[int, ...]], device: torch.device | str = "cpu") -> Tensor:
        """Return the noise key of each place, int64 [place]."""
        return to_device([self._key(stream, *place) for place in places], device)

    def gumbel(self, size: int, stream: int, *place: int, device: torch.device | str = "cpu") -> Tensor:
        """Return standard Gumbel noise, float64 [size], one number per token id."""
        return self.exponential(size, stream, *place, device=device).log_().neg_()


@dataclass(frozen=True)
class Warp:
    """Temperature, then top-k, then top-p, in the order of transformers."""

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
        """Return warped log p, float32 (float64 for float64 logits) [..., vocab], -inf outside the support.

        At temperature 0 the warped distribution is a point mass; the plain log-softmax is returned instead, for display.
        """
        return torch.log_softmax(self._warped(logits), -1)

    def _warped(self, logits: Tensor) -> Tensor:
        """Return logits over temperature, -inf outside the support; at temperature 0 the plain logits."""
        scores = _wide(logits)
        if self.greedy:
            return scores
        if self.temperature < _COLD:
            # Dividing by so small a number overflows, and inf - inf is NaN. Only differences matter, so the largest logit may be
            # 0. A temperature whose reciprocal overflows (such as 1e-40 in float32) is clamped to the smallest normal float.
            scores = scores - scores.amax(-1, keepdim=True)
        scores = scores / max(self.temperature, torch.finfo(scores.dtype).tiny)
        if 0 < self.top_k < scores.shape[-1]:
            floor = scores.topk(self.top_k, dim=-1).values[..., -1:]
            scores = scores.masked_fill(scores < floor, -math.inf)
        if self.top_p < 1.0:
            scores = self._nucleus(scores)
        return scores

    def _nucleus(self, scores: Tensor) -> Tensor:
        """Keep the smallest set of most probable tokens whose mass reaches ``top_p`` (Holtzman et al., arXiv 1904.09751).

        Tokens tied with the last kept token are kept too, so the result does not depend on how the sort orders ties.
        """
        total = torch.logsumexp(scores, -1, keepdim=True)
        vocab = scores.shape[-1]
        # On a GPU, checking whether the top few suffice would synchronize, and a full sort is fast.
        few = min(_NUCLEUS, vocab) if scores.device.type == "cpu" else vocab
        ordered = scores.topk(few, dim=-1).values if few < vocab else scores.sort(dim=-1, descending=True).values
        mass = (ordered - total).exp().cumsum(-1)
        if few < vocab and bool((mass[..., -1] < self.top_p).any()):
            ordered = scores.sort(dim=-1, descending=True).values
            mass = (ordered - total).exp().cumsum(-1)
        last_rank = (mass < self.top_p).sum(-1, keepdim=True).clamp_max(ordered.shape[-1] - 1)
        return scores.masked_fill(scores < ordered.gather(-1, last_rank), -math.inf)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return warped p [..., vocab] with rows that sum to 1; at temperature 0, one-hot at the largest logit."""
        if self.greedy:
            wide = _wide(logits)
            return torch.zeros_like(wide).scatter(-1, wide.argmax(-1, keepdim=True), 1.0)
        return torch.softmax(self._warped(logits), -1)

    def choose(self, logits: Tensor, positions: Sequence[int], noise: Noise) -> Tensor:
        """Draw the target's token for each row, int64 [row].

        ``positions``: absolute positions of the drawn tokens, one past each row's node; they key the noise, which is shared by
        all generations.
        """
        if self.greedy:
            return _wide(logits).argmax(-1)
        rows = self.probabilities(logits).double()
        distinct = list(dict.fromkeys(positions))
        race = noise.coupled.exponentials(rows.shape[-1], TARGET, [(place,) for place in distinct], rows.device)
        if len(distinct) < len(positions):
            row_of = {place: row for row, place in enumerate(distinct)}
            race = race.index_select(0, to_device([row_of[place] for place in positions], rows.device))
        return (rows / race).argmax(-1)


def _wide(logits: Tensor) -> Tensor:
    """Convert to at least float32, because half-precision reductions are several times slower on a CPU."""
    return logits if logits.dtype == torch.float64 else logits.float()


def draw(probability: Tensor, noise: Noise, *place: int, stream: int = TARGET) -> int:
    """Draw one token from a [vocab] distribution (need not sum to 1), with the noise of ``place``."""
    return int(draws(probability[None], noise, [place], stream))


def draws(probabilities: Tensor, noise: Noise, places: Sequence[tuple[int, ...]], stream: int = TARGET) -> Tensor:
    """Draw a token from each row of ``probabilities`` [row, vocab] with the noise of the row's place; int64 [row].

    Nothing is copied to the host.
    """
    race = noise.exponentials(probabilities.shape[-1], stream, places, device=probabilities.device)
    return (probabilities.double() / race).argmax(-1)
