"""Console input and output of the commands: arguments, results, messages, progress, prompts and Ctrl-C.

Text from models, files and servers may contain control characters. Commands print through this module, which escapes them.
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
    """Argument parser that raises BadInput instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message[:1].upper()}{message[1:].rstrip('.')}; see {self.prog} --help.")


_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "path": lambda name: Path(os.path.expanduser(name))}
_COUNTS = re.compile(r"\d[\d,]* of ")


def parser() -> Parser:
    """Return the argument parser defined in ``assets/commands.toml``, without importing torch."""
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
    """Return an argument type for whole numbers from ``low`` to ``high``."""

    def whole(text: str) -> int:
        if text.isdecimal() and low <= int(text) <= high:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from {low} to {high}")

    return whole


class ProgressLine:
    """Progress on the error stream: a single updated line on a terminal, one line per message otherwise.

    If the error stream is not a terminal, consecutive messages that differ only in counts are printed once.
    """

    def __init__(self) -> None:
        self._said = ""
        self._open = False

    def __call__(self, message: str, fraction: float | None = None) -> None:
        """Show a message and the completed fraction, if known."""
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
        """Clear the line."""
        if self._open:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._open = False


def printable(text: str) -> str:
    """Return the text with control characters escaped, except line feeds and tabs."""
    return escape_controls(text).replace("\r", "\\r")


def print_result(value: object = "", end: str = "\n") -> None:
    """Print a result on standard output."""
    print(printable(str(value)), end=end, flush=True)


def print_message(message: str, raw: bool = False) -> None:
    """Print a message on the error stream. ``raw``: whether to keep escape sequences, such as colours."""
    print(message if raw else printable(message), file=sys.stderr, flush=True)


def print_json(json_value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print a JSON value on standard output, in ASCII."""
    print(json.dumps(json_value, allow_nan=False), flush=True)


def colours() -> bool:
    """Return whether standard output is a terminal that shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(rows: list[tuple[str, str]]) -> str:
    """Format rows as two aligned columns."""
    wide = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{wide}}  {value}".rstrip() for name, value in rows)


def read_text(name: str | Path) -> str:
    """Read a file, or standard input if ``name`` is "-". Line ends become "\\n", and a byte order mark is removed.

    Raises BadInput if the file cannot be read or is not UTF-8.
    """
    what = "The prompt on standard input" if str(name) == "-" else f"The prompt file {name}"
    try:
        content = sys.stdin.buffer.read() if str(name) == "-" else Path(name).read_bytes()
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as problem:
        raise BadInput(f"{what} is not UTF-8 text (byte {problem.start + 1}); save it as UTF-8.") from None
    except (OSError, ValueError) as problem:  # ValueError: a zero byte in the name
        raise BadInput(f"{what} cannot be read: {getattr(problem, 'strerror', None) or problem}.") from problem


def read_prompts(name: str | Path, most: int) -> tuple[str, ...]:
    """Read one prompt per non-empty line (see :func:`read_text`). Raises BadInput for no prompts or more than ``most``."""
    prompts = tuple(line.strip() for line in read_text(name).splitlines() if line.strip())
    if not 1 <= len(prompts) <= most:
        raise BadInput(f"{name} has {count(len(prompts), 'prompt')}; the file must have 1 to {most}, one per line.")
    return prompts


def refuse_used(folder: Path) -> None:
    """Raise BadInput if ``folder`` exists and is not an empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} is not empty; choose another folder with --out.")


class Stopping:
    """Context manager in which the first Ctrl-C sets ``event``, so that the run ends after the current step.

    A Ctrl-C before ``started`` is set, or a second one, raises KeyboardInterrupt.
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
