"""Convert another engine's file to trace files, or print the metrics of the requests in it."""

from __future__ import annotations

import argparse
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
        say(f"{len(found.rows)} requests")
        for name in sorted({name for row in found.rows for name in row}):
            values = sorted(float(row[name]) for row in found.rows if name in row)
            say(f"{name:44} {values[len(values) // 2]:>12.5g}  ({values[0]:.5g} to {values[-1]:.5g}, {len(values)} requests)")
        return 0
    if not options.out:
        raise BadInput("Say where the trace goes with --out F.")
    for number, trace in enumerate(found.traces, start=1):
        place = Path(options.out)
        if number > 1:
            place = place.with_name(f"{place.name.removesuffix(store.SUFFIX)}-{number}{store.SUFFIX}")
        store.write(trace, place)
        tell(f"Wrote {place}: {len(trace.steps)} steps.")
    return 0
