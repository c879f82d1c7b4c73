"""Trigram language model: log-probabilities of a token given the two tokens before it, from counts over the training text.

Interpolated absolute discounting: a stored triple contributes (count - discount) / context count. The remaining mass goes to a
bigram model, and from there to a unigram model. Rare triples and pairs are not stored; their mass goes the same way, so the
probabilities after a context sum to one. Axis names: ``word`` (of the vocabulary), ``pair``, ``triple``, ``beam``, ``candidate``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from specviz.drafting.networks.weights import read_weights
from specviz.errors import ModelUnavailable

DISCOUNT = 0.75
_NAMES = ("ids", "count", "single", "pairs", "second", "pair_count", "triples", "third", "triple_count")


@dataclass(frozen=True)
class Counts:
    """Stored counts, as sparse rows (CSR with row lengths instead of offsets). A word is an index into ``ids`` [word], the
    ascending token ids.

    ``count`` [word]: occurrences of a word as context. ``pairs`` [word]: number of stored pairs per first word; ``second`` and
    ``pair_count`` [pair] are their second words and counts. ``triples`` [pair], ``third`` and ``triple_count`` [triple] likewise.
    """

    ids: np.ndarray
    count: np.ndarray
    single: np.ndarray
    """Occurrences of each word, [word]."""
    pairs: np.ndarray
    second: np.ndarray
    pair_count: np.ndarray
    triples: np.ndarray
    third: np.ndarray
    triple_count: np.ndarray


class NgramModel:
    """Trigram model that evaluates many continuations of a few contexts at a time."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self.words = words = len(counts.ids)
        first = np.repeat(np.arange(words), counts.pairs)
        self._pair = first * words + counts.second.astype(np.int64)
        above = np.repeat(np.arange(len(self._pair)), counts.triples)
        self._triple = above * words + counts.third.astype(np.int64)
        single = counts.single + 1.0
        self._single = single / single.sum()
        self._pair_share = (counts.pair_count - DISCOUNT) / counts.count[first]
        self._pair_rest = 1 - np.bincount(first, self._pair_share, minlength=words)
        self._pair_share = np.append(self._pair_share, 0.0)  # sentinel: the share of a pair that is not stored
        self._triple_share = (counts.triple_count - DISCOUNT) / counts.pair_count[above]
        self._triple_rest = np.append(1 - np.bincount(above, self._triple_share, minlength=len(self._pair)), 1.0)
        self._triple_share = np.append(self._triple_share, 0.0)

    def place(self, tokens: np.ndarray) -> np.ndarray:
        """Map token ids to words; -1 for tokens outside the vocabulary."""
        at = np.searchsorted(self.counts.ids, tokens).clip(max=self.words - 1)
        return np.where(self.counts.ids[at] == tokens, at, -1)

    def log_probability(self, before: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return log p [beam, candidate] of ``tokens`` [candidate] after the two token ids ``before`` [beam, 2].

        A token outside the vocabulary gets the unigram probability of the rarest word, backed off like any unseen word.
        """
        before, words = self.place(before), self.place(tokens)
        probability = np.where(words >= 0, self._single[words], self._single.min())[None].repeat(len(before), 0)
        first, second = before[:, 0], before[:, 1]
        known = second >= 0
        at, _ = _find(self._pair, second[:, None] * self.words + words, known[:, None] & (words >= 0))
        probability[known] *= self._pair_rest[second[known], None]
        probability += self._pair_share[at]
        pair, known = _find(self._pair, first * self.words + second, known & (first >= 0))
        at, _ = _find(self._triple, pair[:, None] * self.words + words, known[:, None] & (words >= 0))
        probability[known] *= self._triple_rest[pair[known], None]
        probability += self._triple_share[at]
        return np.log(probability)


def _find(keys: np.ndarray, queries: np.ndarray, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of each query in the ascending ``keys``, and whether it was found.

    Queries that do not occur in ``keys``, or are not ``allowed``, get the index ``len(keys)``.
    """
    at = np.searchsorted(keys, queries)
    hit = allowed & (np.append(keys, -1)[at] == queries)
    return np.where(hit, at, len(keys)), hit


def save(counts: Counts, path: Path, card: Mapping[str, str]) -> None:
    """Write the counts, each array in the smallest sufficient type, and the metadata ``card``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {name: _small(getattr(counts, name)) for name in _NAMES}
    save_file(stored, path, metadata=dict(card))


def _small(values: np.ndarray) -> np.ndarray:
    most = int(values.max()) if len(values) else 0
    kind = np.uint8 if most < 1 << 8 else np.uint16 if most < 1 << 16 else np.uint32
    return np.ascontiguousarray(values.astype(kind))


def load(path: Path) -> NgramModel:
    """Load the model in ``path``. Raises ModelUnavailable if the file holds no such model."""
    stored, _ = read_weights(path)
    if set(stored) != set(_NAMES):
        raise ModelUnavailable(f"{path.name} is not an n-gram model: choose a file written by `python -m specviz train ngrams`.")
    return NgramModel(Counts(**{name: values.numpy() for name, values in stored.items()}))
