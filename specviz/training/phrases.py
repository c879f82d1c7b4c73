"""Sampler of training texts from ``assets/phrases/``: user turns, prompts of four domains and sentences about scenes.

A template is a text with slots. ``{animal}`` stands for a random word of a list, which may contain slots, and ``{3-40}`` for a
random integer. Every tenth word of a long list is reserved for held-out turns. Samples depend on the order of the lists. Shipped
weights were trained on these samples, so ``tests/training/test_phrases.py`` fixes them.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from specviz.paths import ASSETS

HELD_OUT_EVERY = 10
SHORT_LIST = 10
"""Number of words below which a list is shared with held-out turns."""
PASSAGE_SHARE = 0.6
"""Share of passages taken from the target's earlier texts."""
_SLOT = re.compile(r"\{\{|\}\}|\{(\w+)(?:-(\d+))?\}")


@cache
def phrases(name: str) -> Mapping[str, Any]:
    """Return the contents of ``assets/phrases/<name>.toml``."""
    return tomllib.loads((ASSETS / "phrases" / f"{name}.toml").read_text("utf-8"))


ASKED: Mapping[str, Sequence[str]] = phrases("turns")["asked"]
"""Templates of user turns by kind."""
KINDS = (*ASKED, "multi-turn", "unprompted")
"""Kinds of user turns. The target writes turns of the last kind."""
REPORTED = KINDS[:6]
"""Kinds with reported results."""
DOMAINS = tuple(phrases("domains"))


@dataclass(frozen=True)
class Writer:
    """Writer of user turns from templates.

    ``held_out``: whether to use the words reserved for held-out turns. ``passage``: function that returns an earlier text of the
    target, or None.
    """

    generator: random.Random
    held_out: bool
    passage: Callable[[], str | None]

    def turn(self, kind: str) -> str:
        """Return a user turn of this kind."""
        return self.fill(self.generator.choice(ASKED[kind]))

    def follow_up(self) -> str:
        """Return a user turn that follows an answer."""
        return self.fill(self.generator.choice(phrases("turns")["following"]))

    def fill(self, template: str) -> str:
        """Return the template with all slots filled and a capital first letter."""
        return capital(self._filled(template))

    def _filled(self, text: str) -> str:
        """Return the text with all slots filled. Doubled braces become single braces."""
        return _SLOT.sub(lambda match: self._slot(match[1], match[2]) if match[1] else match[0][0], text)

    def _slot(self, name: str, last: str | None) -> str:
        if last:
            return str(self.generator.randint(int(name), int(last)))
        own = self.passage() if name == "passage" and self.generator.random() < PASSAGE_SHARE else None
        return own or self._filled(self.generator.choice(words(name, self.held_out)))


def words(slot: str, held_out: bool) -> Sequence[str]:
    """Return the words for a slot. Held-out turns share whole texts and short lists with training turns."""
    turns = phrases("turns")
    if slot in turns["texts"] or len(turns["words"][slot]) < SHORT_LIST:
        return turns["texts"].get(slot) or turns["words"][slot]
    return [word for place, word in enumerate(turns["words"][slot]) if (place % HELD_OUT_EVERY == HELD_OUT_EVERY - 1) == held_out]


def domain_prompts(domain: str, count: int, seed: int = 0) -> list[str]:
    """Return ``count`` distinct random prompts of a domain."""
    generator = np.random.default_rng([seed, sorted(DOMAINS).index(domain)])
    lists = phrases("domains")[domain]
    distinct: dict[str, None] = {}
    while len(distinct) < count:
        slots = {}
        for slot, choices in lists.items():
            several = lists[choices] if isinstance(choices, str) else choices
            numbers = isinstance(several[0], int)
            slots[slot] = generator.integers(*several) if numbers else several[int(generator.integers(len(several)))]
        distinct[slots.pop("template").format(**slots)] = None
    return list(distinct)


def sentence(form: str, generator: np.random.Generator, **slots: str) -> str:
    """Return a sentence in a random wording of ``form``; earlier wordings are more likely. ``{Name}``: capitalised ``{name}``."""
    forms = phrases("scenes")["forms"][form]
    if len(forms) > 1:
        weight = 1 / np.arange(1, len(forms) + 1)
        forms = [forms[int(generator.choice(len(forms), p=weight / weight.sum()))]]
    return forms[0].format(**slots, **{capital(name): capital(text) for name, text in slots.items()})


def capital(text: str) -> str:
    """Return ``text`` with a capital first letter."""
    return text[:1].upper() + text[1:]


def byte_pairs(
    texts: Iterable[str], size: int, special: Sequence[str], prefix_space: bool = False, normalizer: Any = None
) -> Tokenizer:
    """Train a byte-level BPE tokenizer on ``texts``, with ``size`` tokens."""
    tokenizer, level = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer, tokenizer.decoder = level, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), initial_alphabet=sorted(level.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
