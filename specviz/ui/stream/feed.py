"""Feed of the stage: a control line, then lines of a trace file; it grows at its end, in segments when long."""

from __future__ import annotations

import json

SEGMENT_LETTERS = 240_000
"""Characters of a segment: a browser is much slower on one text of megabytes than on many of this size."""


def control(mode: str, run: str, **more: object) -> str:
    """Control line for the stage, ahead of trace lines. ``mode`` is "live" or "recorded", ``run`` names the run."""
    return json.dumps({"kind": "stage", "mode": mode, "run": run, **more}, separators=(",", ":")) + "\n"


def recorded(run: str, text: str, watch: str = "") -> str:
    """A whole trace file for the stage, which plays it from its first step; ``watch`` is the recording's note."""
    return control("recorded", run, **({"watch": watch} if watch else {})) + text


class Feed:
    """A live run as text that only grows, until its next segment begins."""

    def __init__(self, run: str, segment: int = SEGMENT_LETTERS) -> None:
        self.run = run
        self.segment = segment
        self.text = control("live", run)
        self.count = 0

    def say(self, message: str, share: float | None = None) -> None:
        """Add a progress message before the first step, with the share done if known."""
        more = {} if share is None else {"fraction": round(share, 3)}
        self.text += control("live", self.run, message=message, **more)

    def fail(self, message: str) -> None:
        """Add an error message; the run's steps so far stay on the stage."""
        self.text += control("live", self.run, error=message)

    def timing(self, going: bool) -> None:
        """Announce whether the autoregressive run is being timed, now that this one is over."""
        self.text += control("live", self.run, baseline="being timed now, on the same prompt" if going else "")

    def add(self, lines: list[str]) -> None:
        """Add trace lines, given without line ends."""
        if len(self.text) > self.segment:
            self.text = control("live", self.run, first=self.count)
        self.count += len(lines)
        self.text += "".join(line + "\n" for line in lines)
