"""Convert another engine's file to trace files, or print the metrics of the requests in it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from specviz.commands.console import say, tell
from specviz.errors import BadInput
from specviz.trace import store

HELP = "convert another engine's file to traces"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="a server's response, a dump of drafts, or records of requests")
    parser.add_argument("--out", metavar="F", help=f"the trace file to write ({store.SUFFIX}); further ones are F-2 and so on")


def execute(options: argparse.Namespace) -> int:
    """Write the traces, or print the requests' metrics, and name the unread parts."""
    from specviz.interop import imports

    found = imports.read(options.file)
    for note in found.notes:
        tell(note)
    if found.unread:
        tell(f"Not read: {', '.join(found.unread)}.")
    if found.rows:
        _print(found.rows)
        return 0
    if not options.out:
        raise BadInput("Say where the trace goes with --out F.")
    for number, trace in enumerate(found.traces, start=1):
        store.write(trace, place := _numbered(options.out, number))
        tell(f"Wrote {place}: {len(trace.steps)} steps.")
    return 0


def _numbered(out: str, number: int) -> Path:
    """Return the path of file ``number``: the first as named, the others with their number before the suffix."""
    place = Path(out)
    if number == 1:
        return place
    stem = place.name.removesuffix(store.SUFFIX)
    return place.with_name(f"{stem}-{number}{store.SUFFIX}")


def _print(rows: Sequence[Mapping[str, float | str]]) -> None:
    """Print the median, minimum and maximum of each metric over the requests."""
    names = sorted({name for row in rows for name in row})
    say(f"{len(rows)} requests")
    for name in names:
        values = sorted(float(row[name]) for row in rows if name in row)
        say(f"{name:44} {values[len(values) // 2]:>12.5g}  ({values[0]:.5g} to {values[-1]:.5g}, {len(values)} requests)")
