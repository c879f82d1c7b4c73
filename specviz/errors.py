"""Errors for users, each a sentence that names the cause and the remedy."""

from __future__ import annotations

from typing import Any


class SpecvizError(Exception):
    """Base class of errors that a user can act on. The message is shown as it is, so it must say what to do."""


class BadInput(SpecvizError):
    """A value that the user typed or chose: a parameter, a prompt, a method name.

    ``field`` names the parameter at fault, if there is one; ``problem`` is then the message without the parameter's name.
    """

    def __init__(self, message: str, field: str | None = None, problem: str = "") -> None:
        self.field = field
        self.problem = problem
        super().__init__(message)

    @classmethod
    def of_field(cls, subject: str, field: str, problem: str) -> BadInput:
        """Return the error for a ``field`` that the message calls ``subject``."""
        return cls(f"{subject} {problem}", field, problem)


class BadTrace(SpecvizError):
    """A trace file that breaks the schema. ``line`` is 1-based, ``field`` a JSON path inside that line."""

    def __init__(self, message: str, line: int | None = None, field: str | None = None) -> None:
        self.line = line
        self.field = field
        where = "" if line is None else f"line {line}" + (f", {field}" if field else "") + ": "
        super().__init__(where + message)


class ModelUnavailable(SpecvizError):
    """A model that cannot be fetched, is corrupt, or cannot run the requested method."""


class TokenizerMismatch(ModelUnavailable):
    """Draft and target with different tokenizers, for which a drafted id would mean another word."""


class ContextFull(SpecvizError):
    """A prompt that exceeds the target's context, alone or with the token budget."""


class OutOfMemory(SpecvizError):
    """A device without room for the model, the cache or the tree. The partial trace is kept."""


def shown(value: Any, letters: int = 60) -> str:
    """Return a value as messages quote it: its ``repr``, truncated to ``letters`` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python refuses to write out an integer of thousands of digits
        text = f"a {type(value).__name__} too large to write down"
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
