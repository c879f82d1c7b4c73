"""Console of every command: arguments, messages on the error stream, one JSON object on the output, prompts, Ctrl-C.

Names, texts and errors come from models, files and servers. Their control characters are escaped here, so that none recolours,
retitles or overwrites the terminal. Commands print through this file alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from string import Template
from typing import Any, NoReturn

from specviz.engine.stop import Stop
from specviz.errors import BadInput
from specviz.figures.theme import count, escape_controls
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET, entries
from specviz.paths import ASSETS
from specviz.trace.export import KINDS, OF_ONE_STEP
from specviz.trace.store import SUFFIX


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one sentence, like every other error of this program."""

    def error(self, message: str) -> NoReturn:
        """Raise BadInput instead of printing the usage and exiting."""
        raise BadInput(f"{message[:1].upper()}{message[1:].rstrip('.')}; see {self.prog} --help.")


_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "path": lambda name: Path(os.path.expanduser(name))}
_COUNTS = re.compile(r"\d[\d,]* of ")


def parser() -> Parser:
    """The whole command line, as ``assets/commands.toml`` states it. Building it imports no torch."""
    command_line = Parser(prog="python -m specviz", description="Speculative decoding, live and drawn.")
    commands = command_line.add_subparsers(metavar="COMMAND", required=True)
    models = ", ".join(entry.name for entry in entries())
    text = Template((ASSETS / "commands.toml").read_text("utf-8")).substitute(
        target=DEFAULT_TEXT_TARGET, models=models, suffix=SUFFIX, formats=list(KINDS), trees=" and ".join(OF_ONE_STEP)
    )
    for name, command in tomllib.loads(text).items():
        module = import_module(f"specviz.commands.{name}")
        title = command.get("name", name.replace("_", "-"))
        subparser = commands.add_parser(title, help=command["help"], description=module.__doc__, allow_abbrev=False)
        prompt = None
        for argument, words in command["arguments"].items():
            place: Any = subparser
            if words.pop("alternative", False):
                place = prompt = prompt or subparser.add_mutually_exclusive_group(required=True)
            bounds, name_of_type = words.pop("bounds", None), words.pop("type", type(words.get("default")).__name__)
            kind = _within(*bounds) if bounds else _TYPES.get(name_of_type)
            place.add_argument(argument, **words, **({"type": kind} if kind else {}))
        subparser.set_defaults(execute=module.execute)
    return command_line


def _within(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``low`` to ``high``."""

    def whole(text: str) -> int:
        if text.isdecimal() and low <= int(text) <= high:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from {low} to {high}")

    return whole


class ProgressLine:
    """Progress on the error stream: one rewritten line on a terminal, elsewhere one line per message.

    Messages that differ only in their counts print once.
    """

    def __init__(self) -> None:
        self._said = ""
        self._open = False

    def __call__(self, message: str, fraction: float | None = None) -> None:
        """Show a message, and the completed share if known."""
        message = printable(message)
        if sys.stderr.isatty():
            share = "" if fraction is None else f" {fraction * 100:.0f} %"
            sys.stderr.write(f"\r\x1b[2K{message}{share}")
            self._open = True
        elif (said := _COUNTS.sub("", message)) != self._said:
            sys.stderr.write(message + "\n")
            self._said = said
        sys.stderr.flush()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Clear the line, so that later output starts on an empty one."""
        if self._open:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._open = False


def printable(text: str) -> str:
    """Escape the control characters of a text, except line ends and tabs."""
    return escape_controls(text).replace("\r", "\\r")


def print_result(value: object = "", end: str = "\n") -> None:
    """Print a result on the output."""
    print(printable(str(value)), end=end, flush=True)


def print_message(message: str, raw: bool = False) -> None:
    """Print a message on the error stream. ``raw`` keeps escape sequences, for the program's own colours."""
    print(message if raw else printable(message), file=sys.stderr, flush=True)


def print_json(json_value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print one JSON value, in ASCII so that it survives any terminal and pipe."""
    print(json.dumps(json_value, allow_nan=False), flush=True)


def colours() -> bool:
    """Whether the output is a terminal that allows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(rows: list[tuple[str, str]]) -> str:
    """Format two columns, the first as wide as its longest entry."""
    wide = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{wide}}  {value}".rstrip() for name, value in rows)


def read_text(name: str | Path) -> str:
    """Read a file, or standard input for the ``name`` "-", without a byte order mark. Lines end in "\\n".

    Raises BadInput for a file that cannot be read or is not UTF-8.
    """
    what = "The prompt on standard input" if str(name) == "-" else f"The prompt file {name}"
    try:
        content = sys.stdin.buffer.read() if str(name) == "-" else Path(name).read_bytes()
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as problem:
        raise BadInput(f"{what} is not UTF-8 text (byte {problem.start + 1}); save it as UTF-8.") from None
    except (OSError, ValueError) as problem:  # a name with a zero byte is a ValueError
        raise BadInput(f"{what} cannot be read: {getattr(problem, 'strerror', None) or problem}.") from problem


def read_prompts(name: str | Path, most: int) -> tuple[str, ...]:
    """Read one prompt from each non-empty line (see :func:`read_text`). Raises BadInput for none, or for more than ``most``."""
    prompts = tuple(line.strip() for line in read_text(name).splitlines() if line.strip())
    if not 1 <= len(prompts) <= most:
        raise BadInput(f"{name} holds {count(len(prompts), 'prompt')}; give 1 to {most}, one per line.")
    return prompts


def refuse_used(folder: Path) -> None:
    """Raise BadInput for a path that exists and is not an empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} is not empty; name another folder with --out.")


class Stopping:
    """Context in which the first Ctrl-C sets ``event`` once the run has ``started``, so that the engine ends after the current
    step and the trace stays whole.

    An earlier or second interrupt raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.event = Stop()
        self.started = False
        self._before: Any = None

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *problem: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _interrupted(self, *received: object) -> None:
        if not self.started or self.event.is_set():
            raise KeyboardInterrupt
        self.event.set()
