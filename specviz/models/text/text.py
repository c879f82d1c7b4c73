"""Text functions of a tokenizer: encoded prompts, single tokens, text that grows token by token, and the tokenizer's hash."""

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

# No known tokenizer averages more characters per token, so longer prompts are refused before tokenization.
_CHARACTERS_PER_TOKEN = 64
_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
"""Maps the characters of a byte-level vocabulary to bytes."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LONGEST_UNFINISHED = 3
_MOST, _LETTERS = 8, 30
"""Maximum number of words in a warning, and of characters per word."""


class TokenizerText:
    """Texts of one tokenizer (``engine.interfaces.TokenText``). Thread-safe.

    ``rows``: number of the model's embeddings, None if unknown.
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
        """Return the text of one token; bytes that are not a whole character are written as \\xNN."""
        text = self._texts.get(token)
        if text is None:
            name = self.tokenizer.convert_ids_to_tokens(token)
            text = f"<id {token}>" if name is None else name
            if name is not None and self._spelling is not None and token not in self.special_ids:
                text = self._spelling.bytes_of(token).decode("utf-8", "backslashreplace")
            self._texts[token] = text
        return text

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        """Return the text that each token of ``more`` adds after ``ids``; joined, the pieces are the decoded text.

        A token that ends inside a character adds nothing; a later token that completes or breaks the character adds it.
        """
        if self._spelling is None:  # decode each prefix and take the new text
            texts = [self.decode([*ids, *more[:count]]) for count in range(len(more) + 1)]
            return tuple(longer[len(text) :] for text, longer in itertools.pairwise(texts))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(self._spelling.dangling(ids))
        pieces = [decoder.decode(self._spelling.bytes_of(token)) for token in more]
        first = next((place for place, piece in enumerate(pieces) if piece), None)
        if not ids and first is not None and self._spelling.drops_first_blank:
            pieces[first] = pieces[first].removeprefix(" ")  # sentencepiece puts a space before each text
        return tuple(pieces)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, with special tokens by name. A character cut off at the end becomes U+FFFD."""
        with self._lock:
            return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def uses_template(self, raw: bool) -> bool:
        """Whether ``encode`` wraps a prompt as a chat; False for base models and with ``raw``."""
        return bool(self.tokenizer.chat_template) and not raw

    def encode(self, prompt: str, raw: bool = False) -> list[int]:
        """Return the token ids of ``prompt`` as a user turn and the start of the answer, or with ``raw`` as text to continue.

        Raises BadInput for a token without embedding, and ContextFull if the prompt is far too long. Raises ModelUnavailable if
        the chat template fails or yields no tokens.
        """
        if len(prompt) > self.context_length * _CHARACTERS_PER_TOKEN:
            raise ContextFull(
                f"The prompt has {len(prompt)} characters; {self.name} reads at most {self.context_length} tokens, "
                "answer included. Shorten the prompt."
            )
        with self._lock:
            ids = self._chat(prompt) if self.uses_template(raw) else list(self.tokenizer(prompt)["input_ids"])
        if not ids:
            raise ModelUnavailable(
                f"{self.name}'s tokenizer yields no tokens for this prompt. Use raw continuation, or another prompt."
            )
        self.refuse_unembedded(ids)
        return ids

    def refuse_unembedded(self, ids: Iterable[int]) -> None:
        """Raise BadInput if ``ids`` has a token without an embedding in the model, such as one added later."""
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
        except Exception as problem:  # an untrusted Jinja template may raise any error
            raise ModelUnavailable(
                f"{self.name}'s chat template fails ({first_line(problem)}). Use raw continuation."
            ) from problem
        if not wrapped:
            raise ModelUnavailable(f"{self.name}'s chat template renders nothing. Use raw continuation.")
        return list(wrapped)


def quoted(words: Sequence[str]) -> str:
    """Return a user's words in quotation marks, as many as fit in a warning."""
    return ", ".join(f"“{word[:_LETTERS]}”" for word in words[:_MOST]) + (", …" if len(words) > _MOST else "")


@dataclass
class Spelling:
    """Bytes of the tokens of one tokenizer, each looked up once.

    ``spell``: function from a token's name to its bytes. ``drops_first_blank``: whether the tokenizer removes one leading space
    from decoded text.
    """

    tokenizer: Any
    spell: Callable[[str], bytes]
    drops_first_blank: bool
    known: dict[int, bytes] = field(default_factory=dict)

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes that ``token`` adds to a text; b"" for ids beyond the tokenizer's vocabulary."""
        token_bytes = self.known.get(token)
        if token_bytes is None:
            name = self.tokenizer.convert_ids_to_tokens(token)
            token_bytes = self.known[token] = b"" if name is None else self.spell(name)
        return token_bytes

    def dangling(self, ids: Sequence[int]) -> bytes:
        """Return the bytes at the end of ``ids`` that begin a character without finishing it."""
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
    """Return the spelling of ``tokenizer`` from its decoder; None if it is neither byte-level nor sentencepiece."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = (json.loads(backend.to_str()).get("decoder") if backend is not None else None) or {}
    steps = decoder.get("decoders", [decoder] if decoder else [])
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        # An added token is plain text, even if each letter could stand for a byte: "café", "čau".
        spelled = {added.content: added.content.encode() for added in tokenizer.added_tokens_decoder.values()}
        return Spelling(
            tokenizer, lambda name: spelled.get(name) or bytes(_BYTES[character] for character in name), drops_first_blank=False
        )
    replaces = any(step["type"] == "Replace" and step.get("content") == " " for step in steps)
    if not (replaces or "Metaspace" in kinds):
        return None

    def spell(name: str) -> bytes:
        """Decode sentencepiece's spelling: U+2581 for a space, and names such as <0xE2> for single bytes."""
        byte = _BYTE_TOKEN.fullmatch(name) if "ByteFallback" in kinds else None
        return bytes([int(byte[1], 16)]) if byte else name.replace("\u2581", " ").encode()

    prepends = any(step.get("prepend_scheme", "never") != "never" for step in steps if step["type"] == "Metaspace")
    return Spelling(tokenizer, spell, "Strip" in kinds or prepends)


def tokenizer_hash(tokenizer: Any) -> str:
    """Return the SHA-256 of what gives token ids their meaning: vocabulary by id, merges and normaliser.

    Chat templates, padding and special-token roles do not count, because models that differ only there share their tokens.
    """
    meaning = [sorted(tokens_by_id(tokenizer).items()), *rules_of(tokenizer)]
    return hashlib.sha256(json.dumps(meaning, ensure_ascii=True, sort_keys=True).encode()).hexdigest()


def rules_of(tokenizer: Any) -> tuple[Any, Any]:
    """Return merges and normaliser; None for both if the tokenizer is not from the tokenizers library."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    described = json.loads(backend.to_str()) if backend is not None else {}
    return described.get("model", {}).get("merges"), described.get("normalizer")


def tokens_by_id(tokenizer: Any) -> dict[int, str]:
    """Return the tokens by id."""
    return {index: token for token, index in tokenizer.get_vocab().items()}
