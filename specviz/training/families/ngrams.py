"""``train ngrams``: counts of token pairs and triples in the training answers, for a trigram model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from specviz.drafting.memory.ngram_model import Counts, NgramModel, save
from specviz.training import data, driver
from specviz.training.features import SUPPORT, gather
from specviz.training.registry import Job

MEASURED = 100
RARE = {"pair": 2, "triple": 2}
"""Minimum counts of stored pairs and triples."""


def make(job: Job) -> None:
    """Count, measure the perplexity on held-out answers, and write ``assets/weights/ngrams.safetensors``.

    ``minutes`` is ignored; counting takes seconds.
    """
    inputs = gather(job)
    dialogues, vocab = inputs.dialogues, inputs.assets.embedding.shape[0]
    training, held_out = data.split(dialogues)
    ids, _ = data.draft_vocabulary(dialogues, training, min(SUPPORT, vocab), vocab, [inputs.assets.markers.end])
    counts = count_ngrams(texts(dialogues, training), ids, *RARE.values())
    found = perplexity(NgramModel(counts), texts(dialogues, held_out[:MEASURED]))
    metrics = {"perplexity": found, "pairs": len(counts.second), "triples": len(counts.third)}
    line, tokenizer = data.dialogues_line(inputs.files, "the training answers alone"), inputs.assets.target.tokenizer_hash
    driver.ship(job, RARE, line, "some seconds", metrics, partial(save, counts), tokenizer_hash=tokenizer)


def texts(dialogues: data.Dialogues, numbers: Sequence[int]) -> list[np.ndarray]:
    """Return each answer, preceded by the last two tokens of the question."""
    return [dialogues.of(number)[max(0, int(dialogues.prompt[number]) - 2) :] for number in numbers]


def count_ngrams(answers: Iterable[np.ndarray], ids: np.ndarray, rare_pair: int, rare_triple: int) -> Counts:
    """Count pairs and triples of the tokens ``ids`` within each text. The leading pair of every stored triple is stored, too."""
    words = len(ids)
    text = np.concatenate([part for answer in answers for part in (answer, [-1])])  # -1: end of a text
    at = np.searchsorted(ids, text).clip(max=words - 1)
    word = np.where(ids[at] == text, at, -1)
    followed = word[:-1][(word[:-1] >= 0) & (text[1:] >= 0)]
    single, context = (np.bincount(counted, minlength=words) for counted in (word[word >= 0], followed))
    both = (word[:-1] >= 0) & (word[1:] >= 0)
    pairs, triples = word[:-1] * words + word[1:], word[:-2] * words**2 + word[1:-1] * words + word[2:]
    pair, pair_count = _often(pairs[both], rare_pair)
    triple, triple_count = _often(triples[both[:-1] & both[1:]], max(rare_pair, rare_triple))
    of_pair = np.searchsorted(pair, triple // words)
    return Counts(
        ids, context, single,
        np.bincount(pair // words, minlength=words), pair % words, pair_count,
        np.bincount(of_pair, minlength=len(pair)), triple % words, triple_count,
    )  # fmt: skip


def _often(keys: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    distinct_keys, count = np.unique(keys, return_counts=True)
    return distinct_keys[count >= least], count[count >= least]


def perplexity(model: NgramModel, answers: Sequence[np.ndarray]) -> float:
    """Return the perplexity of the in-vocabulary tokens of ``answers``, from the third token on."""
    total, count = 0.0, 0
    for text in answers:
        for place in range(2, len(text)):
            if int(model.place(text[place : place + 1])[0]) >= 0:
                total -= float(model.log_probability(text[None, place - 2 : place], text[place : place + 1])[0, 0])
                count += 1
    return float(np.exp(total / max(1, count)))
