"""Image prompt as token rows: a conditional and an unconditional one, for classifier-free guidance.

The shipped image models read a fixed number of prompt tokens: [begin, words …, pad …, picture]. Padding is read like any
other token, so no attention mask is needed, and the first picture code always stands at the same position.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from tokenizers import Tokenizer
from torch import Tensor

from specviz.errors import BadInput

PAD, BEGIN, PICTURE = 0, 1, 2
SPECIAL = ("<pad>", "<begin>", "<picture>")
PROMPT_TOKENS = 16
LONGEST_PROMPT = 2000


@dataclass(frozen=True)
class PromptRows:
    """Equally long token rows of one prompt; -1 in the unconditional one is padding that no token sees. ``unread`` is what of
    the prompt did not fit, for the screen; empty mostly. ``embedded`` [row, place, hidden] are the rows as the model reads
    them, where that is more than a token's own embedding; nothing behind the first ``unseen`` places sees them."""

    conditional: tuple[int, ...]
    unconditional: tuple[int, ...]
    unread: str = ""
    embedded: Tensor | None = None
    unseen: int = 0


class PromptReader(Protocol):
    """Turns a prompt into rows and a token id into its text."""

    def rows(self, prompt: str) -> PromptRows:
        """Both rows. Raises BadInput on a prompt that is empty or far too long."""

    def of(self, token: int) -> str:
        """A prompt token's own text."""


class WordPrompts:
    """Byte-level word pieces: every word can be written, also one that training never saw."""

    def __init__(self, description: str) -> None:
        """``description`` is the JSON of a ``tokenizers.Tokenizer`` whose first three ids are the special tokens."""
        self.description = description
        self._tokenizer = Tokenizer.from_str(description)

    @property
    def size(self) -> int:
        """How many prompt tokens there are."""
        return self._tokenizer.get_vocab_size()

    @property
    def digest(self) -> str:
        """Tells two tokenizers apart."""
        return hashlib.sha256(self.description.encode("utf-8")).hexdigest()[:16]

    def rows(self, prompt: str) -> PromptRows:
        encoded = self._tokenizer.encode(checked(prompt))
        room = PROMPT_TOKENS - 2
        words = encoded.ids[:room]
        unread = prompt.strip()[encoded.offsets[room][0] :].strip() if len(encoded.ids) > room else ""
        padded = [*words, *[PAD] * (room - len(words))]
        return PromptRows((BEGIN, *padded, PICTURE), (BEGIN, *[PAD] * room, PICTURE), unread)

    def of(self, token: int) -> str:
        return SPECIAL[token] if token < len(SPECIAL) else self._tokenizer.decode([token])


def checked(prompt: str) -> str:
    """The prompt without surrounding blanks. Raises BadInput when nothing is left or it is far too long."""
    text = prompt.strip()
    if not text:
        raise BadInput('Say what to draw, for example "red heart, noto style".')
    if len(text) > LONGEST_PROMPT:
        raise BadInput(f"The prompt has {len(text)} characters; a picture's prompt may have {LONGEST_PROMPT}.")
    return text
