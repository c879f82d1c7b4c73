"""Texts of a tokenizer: prompts, single tokens, and text that grows token by token; and the tokenizer's hash."""

from __future__ import annotations

import codecs
import hashlib
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from specviz.errors import BadInput, ContextFull, ModelUnavailable
from specviz.models.hub.opening import first_line

# No known tokenizer averages more characters per token; a prompt beyond that is refused before tokenization.
_CHARACTERS_PER_TOKEN = 64
_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
"""Bytes by the characters that stand for them in a byte-level vocabulary."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LONGEST_UNFINISHED = 3
_MOST, _LETTERS = 8, 30
"""Maximum number of words in a warning, and of characters in each."""


class TokenizerText:
    """One tokenizer's texts (``engine.interfaces.TokenText``). Shared between runs and their threads.

    ``rows`` counts the model's embeddings, None if unknown.
    """

    def __init__(self, tokenizer: Any, name: str, context_length: int, rows: int | None = None) -> None:
        self.tokenizer = tokenizer
        self.name = name
        self.context_length = context_length
        self.rows = rows
        added = tokenizer.added_tokens_decoder.items()
        self.special_ids = frozenset({token for token, content in added if content.special}) | set(tokenizer.all_special_ids)
        self._spelling: Spelling | None = spelling_of(tokenizer)
        self._texts: dict[int, str] = {}
        # A Rust tokenizer cannot be borrowed twice at once.
        self._lock = threading.Lock()

    def of(self, token: int) -> str:
        """Text of one token; bytes that form no character by themselves are written as \\xNN."""
        text = self._texts.get(token)
        if text is None:
            name = self.tokenizer.convert_ids_to_tokens(token)
            text = f"<id {token}>" if name is None else name
            if name is not None and self._spelling is not None and token not in self.special_ids:
                text = self._spelling.bytes_of(token).decode("utf-8", "backslashreplace")
            self._texts[token] = text
        return text

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        """Text that each of ``more`` adds to the text of ``ids``; the pieces join to the decoded text.

        A token that ends inside a character adds nothing until the token that completes or breaks the character.
        """
        if self._spelling is None:  # decode every prefix and take the new text
            texts = [self.decode([*ids, *more[:count]]) for count in range(len(more) + 1)]
            return tuple(longer[len(text) :] for text, longer in itertools.pairwise(texts))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(self._spelling.dangling(ids))
        pieces = [decoder.decode(self._spelling.bytes_of(token)) for token in more]
        first = next((place for place, piece in enumerate(pieces) if piece), None)
        if not ids and first is not None and self._spelling.drops_first_blank:
            pieces[first] = pieces[first].removeprefix(" ")  # sentencepiece puts a space before every text
        return tuple(pieces)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens by name. A character cut off at the end shows as U+FFFD."""
        with self._lock:
            return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def uses_template(self, raw: bool) -> bool:
        """Whether ``encode`` wraps a prompt as a chat: never with ``raw``, never for a base model."""
        return bool(self.tokenizer.chat_template) and not raw

    def encode(self, prompt: str, raw: bool = False) -> list[int]:
        """Token ids of ``prompt``: as a user turn and the start of the answer, or with ``raw`` as text to continue.

        Raises BadInput for a prompt without text or with a token that the model has no embedding for. Raises ContextFull for a
        prompt far longer than the context, and ModelUnavailable if the chat template fails or no tokens result.
        """
        refuse_unreadable(prompt, "prompt", "The prompt is empty. Type something for the model to continue.")
        if len(prompt) > self.context_length * _CHARACTERS_PER_TOKEN:
            raise ContextFull(
                f"The prompt has {len(prompt)} characters; {self.name} reads at most {self.context_length} tokens, "
                "its own answer included. Shorten the prompt."
            )
        with self._lock:
            ids = self._chat(prompt) if self.uses_template(raw) else list(self.tokenizer(prompt)["input_ids"])
        if not ids:
            raise ModelUnavailable(f"{self.name} turns this prompt into no tokens. Use raw continuation, or another prompt.")
        self.refuse_unembedded(ids)
        return ids

    def refuse_unembedded(self, ids: Iterable[int]) -> None:
        """Raise BadInput for a token of the tokenizer that the model has no embedding for, such as one added later."""
        beyond = next((token for token in ids if self.rows is not None and token >= self.rows), None)
        if beyond is not None:
            raise BadInput(
                f"The prompt's token {beyond} ({self.of(beyond)!r}) has no row among the {self.rows} embeddings of {self.name}. "
                "Remove it from the prompt."
            )

    def _chat(self, prompt: str) -> list[int]:
        try:
            wrapped = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except Exception as problem:  # an untrusted template, run by Jinja, may raise any error of Python
            raise ModelUnavailable(
                f"{self.name}'s chat template fails ({first_line(problem)}). Use raw continuation."
            ) from problem
        if not wrapped:
            raise ModelUnavailable(f"{self.name}'s chat template renders nothing. Use raw continuation.")
        return list(wrapped)


def refuse_unreadable(text: str, what: str, empty: str) -> None:
    """Raise BadInput for a text without words, with the message ``empty``, or for a character that no tokenizer reads."""
    if not text.strip():
        raise BadInput(empty)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise BadInput(f"The {what}'s character {problem.start} is half of a surrogate pair. Remove it.") from None


def quoted(words: Sequence[str]) -> str:
    """Return the first of a user's words in quotation marks, each truncated to fit a warning."""
    return ", ".join(f"“{word[:_LETTERS]}”" for word in words[:_MOST]) + (", …" if len(words) > _MOST else "")


@dataclass
class Spelling:
    """Bytes of every token of one tokenizer, each looked up once.

    ``spell`` returns those of a token's name. ``drops_first_blank``: the tokenizer removes one leading space from a decoded text.
    """

    tokenizer: Any
    spell: Callable[[str], bytes]
    drops_first_blank: bool
    known: dict[int, bytes] = field(default_factory=dict)

    def bytes_of(self, token: int) -> bytes:
        """Bytes that ``token`` adds to a text; none for a model's ids beyond the tokenizer's vocabulary."""
        token_bytes = self.known.get(token)
        if token_bytes is None:
            name = self.tokenizer.convert_ids_to_tokens(token)
            token_bytes = self.known[token] = b"" if name is None else self.spell(name)
        return token_bytes

    def dangling(self, ids: Sequence[int]) -> bytes:
        """The bytes at the end of ``ids`` that begin a character without finishing it."""
        tail = b""
        for token in reversed(ids):
            tail = self.bytes_of(token) + tail
            if len(tail) > _LONGEST_UNFINISHED:
                break
        for length in range(min(_LONGEST_UNFINISHED, len(tail)), 0, -1):
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            if not decoder.decode(tail[-length:]):
                return tail[-length:]
        return b""


def spelling_of(tokenizer: Any) -> Spelling | None:
    """Spelling of ``tokenizer``, read from its decoder; None if it is neither byte-level nor sentencepiece."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = (json.loads(backend.to_str()).get("decoder") if backend is not None else None) or {}
    steps = decoder.get("decoders", [decoder] if decoder else [])
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        # An added token is plain text, even if each of its letters stands for some byte: "café", "čau".
        spelled = {added.content: added.content.encode() for added in tokenizer.added_tokens_decoder.values()}
        return Spelling(
            tokenizer, lambda name: spelled.get(name) or bytes(_BYTES[character] for character in name), drops_first_blank=False
        )
    replaces = any(step["type"] == "Replace" and step.get("content") == " " for step in steps)
    if not (replaces or "Metaspace" in kinds):
        return None

    def spell(name: str) -> bytes:
        """Sentencepiece's spelling: U+2581 for a space, and tokens such as <0xE2> for single bytes."""
        byte = _BYTE_TOKEN.fullmatch(name) if "ByteFallback" in kinds else None
        return bytes([int(byte[1], 16)]) if byte else name.replace("\u2581", " ").encode()

    prepends = any(step.get("prepend_scheme", "never") != "never" for step in steps if step["type"] == "Metaspace")
    return Spelling(tokenizer, spell, "Strip" in kinds or prepends)


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 over the meaning of token ids: vocabulary by id, merges and normaliser.

    Chat templates, padding and special-token roles are left out: two models that differ only there share their tokens.
    """
    meaning = [sorted(tokens_by_id(tokenizer).items()), *rules_of(tokenizer)]
    return hashlib.sha256(json.dumps(meaning, ensure_ascii=True, sort_keys=True).encode()).hexdigest()


def rules_of(tokenizer: Any) -> tuple[Any, Any]:
    """Merges and normaliser; both None if the tokenizer is not from the tokenizers library."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    described = json.loads(backend.to_str()) if backend is not None else {}
    return described.get("model", {}).get("merges"), described.get("normalizer")


def tokens_by_id(tokenizer: Any) -> dict[int, str]:
    """Every token by its id."""
    return {index: token for token, index in tokenizer.get_vocab().items()}
