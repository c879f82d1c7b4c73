"""``train ngrams``: pairs and triples of tokens counted in the training answers, and how well they foresee the others.

How well is perplexity, and what DiffuSpec's search through a lattice is worth with them: the same blocks of held-out greedy
answers with and without the n-grams.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import torch

from specviz.drafting.memory.ngram_model import Counts, NgramModel, save
from specviz.drafting.networks.masked_lm import MaskedLM, load
from specviz.methods.diffuspec.lattice import Ngrams, columns, distribution, search
from specviz.methods.diffuspec.searched import Searching
from specviz.training import acceptance, data, driver, features
from specviz.training.registry import WEIGHTS, Job

SUPPORT = 8192
MEASURED = 100
SEARCHED = (16, 8, 7)
"""Held-out greedy answers that are searched with the masked language model, masks in a block, places from block to block."""
SEARCH_WEIGHTS = (1.0, 0.75, 0.5, 0.25)
"""Shares of the drafter's distribution in a path's score; at 1 the path is each place's likeliest token."""


RARE = {"pair": 2, "triple": 2}
"""Pairs and triples met less often are left out."""


def make(job: Job) -> None:
    """Count, measure, write ``assets/weights/ngrams.safetensors``. Takes seconds, whatever time is given."""
    files = data.find(job.data)
    assets = features.target_assets(job.device)
    dialogues = data.read_all(files)
    training, held_out = data.split(dialogues)
    vocab = assets.embedding.shape[0]
    ids, _ = data.draft_vocabulary(dialogues, training, min(SUPPORT, vocab), vocab, [assets.markers.end])
    counts = counted(texts(dialogues, training), ids, *RARE.values())
    model = NgramModel(counts)
    figures: dict[str, object] = {
        "perplexity": round(perplexity(model, texts(dialogues, held_out[:MEASURED])), 2),
        "pairs": len(counts.second),
        "triples": len(counts.third),
    }
    base = WEIGHTS / "masked_lm.safetensors"
    if base.is_file():
        masked = load(base, assets.embedding.to(assets.target.device), torch.float32, assets.target.device)
        greedy = [number for number in held_out if dialogues.temperature[number] == 0][: SEARCHED[0]]
        figures["searched"] = searched_agreement(masked, model, dialogues, greedy, assets.markers, *SEARCHED[1:])
    line, tokenizer = data.dialogues_line(files, "the training answers alone"), assets.target.tokenizer_hash
    driver.ship(job, RARE, line, "some seconds", figures, partial(save, counts), tokenizer_hash=tokenizer)


def texts(dialogues: data.Dialogues, numbers: Sequence[int]) -> list[np.ndarray]:
    """Each answer with the two tokens before it."""
    return [dialogues.of(number)[max(0, int(dialogues.prompt[number]) - 2) :] for number in numbers]


def counted(answers: Iterable[np.ndarray], ids: np.ndarray, rare_pair: int, rare_triple: int) -> Counts:
    """Pairs and triples within each text. A triple that stays is at least as rare as its pair, so its pair stays too."""
    words, texts_ = len(ids), []
    for text in answers:
        at = np.searchsorted(ids, text).clip(max=words - 1)
        texts_.append(np.where(ids[at] == text, at, -1))
    single = np.zeros(words, np.int64)
    context = np.zeros(words, np.int64)
    pairs, triples = [], []
    for text in texts_:
        single += np.bincount(text[text >= 0], minlength=words)
        context += np.bincount(text[:-1][text[:-1] >= 0], minlength=words)
        both = (text[:-1] >= 0) & (text[1:] >= 0)
        pair = text[:-1] * words + text[1:]
        pairs.append(pair[both])
        three = both[:-1] & both[1:]
        triples.append((pair[:-1] * words + text[2:])[three])
    pair, pair_count = _often(np.concatenate(pairs), rare_pair)
    triple, triple_count = _often(np.concatenate(triples), max(rare_pair, rare_triple))
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
    """exp of the mean -log p of the tokens of ``answers`` that are words, from the third on."""
    total, count = 0.0, 0
    for text in answers:
        for place in range(2, len(text)):
            if int(model.place(text[place : place + 1])[0]) >= 0:
                total -= float(model.log_probability(text[None, place - 2 : place], text[place : place + 1])[0, 0])
                count += 1
    return float(np.exp(total / max(1, count)))


@torch.inference_mode()
def searched_agreement(
    model: MaskedLM, ngrams: Ngrams, dialogues: data.Dialogues, chosen: Sequence[int], markers: data.Markers,
    places: int, stride: int,
) -> dict[str, list[float]]:  # fmt: skip
    """By weight: mean accepted tokens, the first place's acceptance, and the second's given the first.

    A block begins at every ``stride``-th place of each of the ``chosen`` greedy answers, as far as a whole one fits.
    """
    how, ends = Searching(), frozenset([markers.end])
    ranks_by_weight: dict[float, list[list[int]]] = {weight: [] for weight in SEARCH_WEIGHTS}
    for number in chosen:
        answer = dialogues.answer(number).tolist()
        text = [*markers.prefix, *dialogues.of(number).tolist()]
        first = len(text) - len(answer)
        for at in range(0, len(answer) - places, stride):
            before = text[: first + at]
            log_q = distribution(model(torch.tensor(before, device=model.embedding.device), places))
            lattice = columns(log_q, model.draft_ids, how.mass, how.cap, ends)
            for weight in SEARCH_WEIGHTS:
                path = search(lattice, ngrams, before, weight, how.width, ends).path
                wrong = [int(token != truth) for token, truth in zip(path, answer[at:], strict=False)]
                ranks_by_weight[weight].append([*wrong, *[1] * (places - len(wrong))])
    figures = {str(weight): acceptance.figures(torch.tensor(rows)) for weight, rows in ranks_by_weight.items() if rows}
    return {weight: [found["tau"] - 1, found["first1"], found["first2"]] for weight, found in figures.items()}
