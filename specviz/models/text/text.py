"""Tokenizer for people: prompts, single tokens, and text that grows token by token."""

from __future__ import annotations

import codecs
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from specviz.errors import BadInput, ContextFull, ModelUnavailable
from specviz.models.hub.opening import first_line
from specviz.models.text.token_bytes import Spelling, spelling_of

# No tokenizer we know averages more characters a token; beyond that a prompt is refused before it is cut into tokens.
_CHARACTERS_PER_TOKEN = 64


class TokenizerText:
    """One tokenizer's texts (``engine.interfaces.TokenText``). Shared between runs and their threads.

    ``rows`` counts the model's embeddings, None where they are unknown.
    """

    def __init__(self, tokenizer: Any, name: str, context_length: int, rows: int | None = None) -> None:
        self.tokenizer = tokenizer
        self.name = name
        self.context_length = context_length
        self.rows = rows
        self.special_ids = _special_ids(tokenizer)
        self._spelling: Spelling | None = spelling_of(tokenizer)
        self._texts: dict[int, str] = {}
        # A Rust tokenizer refuses to be borrowed twice at once.
        self._lock = threading.Lock()

    @property
    def has_template(self) -> bool:
        """Whether this is an instruct model's tokenizer, with a chat template."""
        return bool(self.tokenizer.chat_template)

    def of(self, token: int) -> str:
        """This token's own text; bytes that are no character by themselves are written as \\xNN."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self._show(token)
        return text

    def _show(self, token: int) -> str:
        name = self.tokenizer.convert_ids_to_tokens(token)
        if name is None:
            return f"<id {token}>"
        if self._spelling is None or token in self.special_ids:
            return name
        return self._spelling.bytes_of(token).decode("utf-8", "backslashreplace")

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        """What each of ``more`` adds to the text of ``ids``: their concatenation is the decoded text.

        A token that ends inside a character adds nothing until the token that completes or breaks the character.
        """
        if self._spelling is None:
            return self._differences(ids, more)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(self._spelling.dangling(ids))
        pieces = [decoder.decode(self._spelling.bytes_of(token)) for token in more]
        if not ids and self._spelling.drops_first_blank:
            _drop_first_blank(pieces)
        return tuple(pieces)

    def _differences(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        """The same for a tokenizer whose spelling we do not know: decode everything, look at what is new."""
        pieces, text = [], self.decode(ids)
        for count in range(1, len(more) + 1):
            longer = self.decode([*ids, *more[:count]])
            pieces.append(longer[len(text) :])
            text = longer
        return tuple(pieces)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens by name. A character cut off at the end shows as U+FFFD."""
        with self._lock:
            return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def uses_template(self, raw: bool) -> bool:
        """Whether ``encode`` wraps a prompt as a chat: never with ``raw``, never for a base model."""
        return self.has_template and not raw

    def encode(self, prompt: str, raw: bool = False) -> list[int]:
        """Token ids of ``prompt``: as a user's turn with the answer opened, or with ``raw`` as text to go on from.

        Raises BadInput for a prompt without text, or with a token that the model has no embedding of, and ContextFull for one
        that the model cannot read whole.
        """
        self._refuse(prompt)
        with self._lock:
            ids = self._chat(prompt) if self.uses_template(raw) else list(self.tokenizer(prompt)["input_ids"])
        if not ids:
            raise ModelUnavailable(f"{self.name} makes no tokens of this prompt. Use raw continuation, or another prompt.")
        self.refuse_unembedded(ids)
        if len(ids) >= self.context_length:
            raise self._too_long(f"{len(ids)} tokens")
        return ids

    def refuse_unembedded(self, ids: Iterable[int]) -> None:
        """Raise BadInput for a token that the tokenizer knows and the model has no embedding of, such as one added later."""
        beyond = next((token for token in ids if self.rows is not None and token >= self.rows), None)
        if beyond is not None:
            raise BadInput(
                f"The prompt's token {beyond} ({self.of(beyond)!r}) has no row among the {self.rows} embeddings of {self.name}. "
                "Take it out of the prompt."
            )

    def _refuse(self, prompt: str) -> None:
        if not prompt.strip():
            raise BadInput("The prompt is empty. Type something for the model to go on from.")
        if len(prompt) > self.context_length * _CHARACTERS_PER_TOKEN:
            raise self._too_long(f"{len(prompt)} characters")
        try:
            prompt.encode("utf-8")
        except UnicodeEncodeError as problem:
            raise BadInput(f"The prompt's character {problem.start} is half of a surrogate pair. Remove it.") from None

    def _chat(self, prompt: str) -> list[int]:
        try:
            wrapped = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except Exception as problem:  # a stranger's template, run by Jinja, may raise whatever Python does
            raise ModelUnavailable(
                f"{self.name}'s chat template fails ({first_line(problem)}). Use raw continuation."
            ) from problem
        if not wrapped:
            raise ModelUnavailable(f"{self.name}'s chat template renders nothing. Use raw continuation.")
        return list(wrapped)

    def _too_long(self, length: str) -> ContextFull:
        return ContextFull(
            f"The prompt is {length} long; {self.name} reads at most {self.context_length} tokens, its own answer "
            "included. Shorten the prompt."
        )


def embedded(model: Any) -> int:
    """How many tokens a loaded model has an embedding of."""
    return int(model.get_input_embeddings().weight.shape[0])


def _special_ids(tokenizer: Any) -> frozenset[int]:
    added = {token for token, content in tokenizer.added_tokens_decoder.items() if content.special}
    return frozenset(added | set(tokenizer.all_special_ids))


def _drop_first_blank(pieces: list[str]) -> None:
    """Take the blank that sentencepiece puts in front of every text off the first piece that has text."""
    for place, piece in enumerate(pieces):
        if piece:
            pieces[place] = piece.removeprefix(" ")
            return
