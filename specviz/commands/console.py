"""Console output of every command: messages for people on the error stream, exactly one JSON object on the output.

Names, texts and errors come from models, files and servers. Their control characters are escaped here, so that none recolours,
retitles or overwrites the terminal. Commands print through this file alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from specviz.errors import BadInput
from specviz.figures.theme import escape_controls


class Parser(argparse.ArgumentParser):
    """An argument parser with errors of one sentence, like every other error of this program."""

    def error(self, message: str) -> NoReturn:
        """Raise BadInput instead of printing the usage and leaving."""
        raise BadInput(f"{message[:1].upper()}{message[1:].rstrip('.')}; see {self.prog} --help.")


_COUNTS = re.compile(r"\d[\d,]* of ")


class ProgressLine:
    """Progress on the error stream: one rewritten line on a terminal, elsewhere one line per message.

    Messages that differ only in their counts print once.
    """

    def __init__(self) -> None:
        self._said = ""
        self._open = False

    def __call__(self, message: str, fraction: float | None = None) -> None:
        """Show a message, and the share done if known."""
        message = printable(message)
        if sys.stderr.isatty():
            share = "" if fraction is None else f" {fraction * 100:.0f} %"
            sys.stderr.write(f"\r\x1b[2K{message}{share}")
            self._open = True
        elif (said := _COUNTS.sub("", message)) != self._said:
            sys.stderr.write(message + "\n")
            self._said = said
        sys.stderr.flush()

    def close(self) -> None:
        """Clear the line, so that later output starts on its own."""
        if self._open:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._open = False


def printable(text: str) -> str:
    """Escape the control characters of a text, except line ends and tabs."""
    return escape_controls(text).replace("\r", "\\r")


def say(value: object = "", end: str = "\n") -> None:
    """Print text on the output."""
    print(printable(str(value)), end=end, flush=True)


def tell(message: str, raw: bool = False) -> None:
    """Print a line for people on the error stream. ``raw`` keeps colours, for the program's own text."""
    print(message if raw else printable(message), file=sys.stderr, flush=True)


def emit(json_value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print one JSON value, in ASCII so that it survives any terminal and pipe."""
    print(json.dumps(json_value, allow_nan=False), flush=True)


def colours() -> bool:
    """Whether the output is a terminal that allows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(rows: list[tuple[str, str]]) -> str:
    """Format two columns, the first as wide as its widest word."""
    wide = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{wide}}  {value}".rstrip() for name, value in rows)
