"""Bytes of each token, for the two spellings that language models' tokenizers use."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LONGEST_UNFINISHED = 3


class Spelling:
    """Bytes of every token of one tokenizer, looked up once each.

    ``drops_first_blank`` says that the tokenizer takes one leading blank off a decoded text.
    """

    def __init__(self, tokenizer: Any, spell: Callable[[str], bytes], drops_first_blank: bool) -> None:
        self.drops_first_blank = drops_first_blank
        self._tokenizer = tokenizer
        self._spell = spell
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token: int) -> bytes:
        """What ``token`` adds to a text; nothing where a model has more ids than its tokenizer."""
        token_bytes = self._known.get(token)
        if token_bytes is None:
            name = self._tokenizer.convert_ids_to_tokens(token)
            token_bytes = self._known[token] = b"" if name is None else self._spell(name)
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
    """How ``tokenizer`` spells, read from its own decoder; None when it is neither byte-level nor sentencepiece."""
    steps = _decoder_steps(tokenizer)
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        # An added token is text as it stands, also where each of its letters stands for some byte: "café", "čau".
        spelled = {added.content: added.content.encode() for added in tokenizer.added_tokens_decoder.values()}
        return Spelling(tokenizer, lambda name: spelled.get(name) or _byte_level(name), drops_first_blank=False)
    replaces = any(step["type"] == "Replace" and step.get("content") == " " for step in steps)
    if replaces or "Metaspace" in kinds:
        metaspace = next((step for step in steps if step["type"] == "Metaspace"), {})
        drops = "Strip" in kinds or metaspace.get("prepend_scheme", "never") != "never"
        return Spelling(tokenizer, _with_byte_tokens if "ByteFallback" in kinds else _marked_blanks, drops)
    return None


def _decoder_steps(tokenizer: Any) -> list[dict[str, Any]]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = json.loads(backend.to_str()).get("decoder") if backend is not None else None
    if not decoder:
        return []
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary: itself where it prints, else U+0100 on."""
    printing = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    unprintable = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + place): byte for place, byte in enumerate(unprintable)}


_ALPHABET = _alphabet()


def _byte_level(name: str) -> bytes:
    """GPT-2's spelling."""
    return bytes(_ALPHABET[character] for character in name)


def _marked_blanks(name: str) -> bytes:
    """Sentencepiece's spelling: U+2581 for a blank."""
    return name.replace("\u2581", " ").encode("utf-8")


def _with_byte_tokens(name: str) -> bytes:
    """Sentencepiece's spelling with tokens such as <0xE2> for single bytes."""
    byte = _BYTE_TOKEN.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else _marked_blanks(name)
