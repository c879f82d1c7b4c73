"""Feed of the stage: a control line, then lines of a trace file; it grows at its end, in segments when long."""

from __future__ import annotations

import json

SEGMENT_LETTERS = 240_000
"""A browser takes much longer over one text of megabytes than over many of this size."""


def control(mode: str, run: str, **more: object) -> str:
    """The line that tells the stage what follows. ``mode`` is "live" or "recorded", ``run`` names the run."""
    return json.dumps({"kind": "stage", "mode": mode, "run": run, **more}, separators=(",", ":")) + "\n"


def recorded(run: str, text: str, watch: str = "") -> str:
    """A whole trace file for the stage, which plays it from its first step; ``watch`` says what to look at."""
    return control("recorded", run, **({"watch": watch} if watch else {})) + text


class Feed:
    """A run that is going on, as text that only grows, until it is so long that its next segment begins."""

    def __init__(self, run: str, segment: int = SEGMENT_LETTERS) -> None:
        self.run = run
        self.segment = segment
        self.text = control("live", run)
        self.count = 0

    def say(self, message: str, share: float | None = None) -> None:
        """A word on how things stand, for the time before the first step, and the share that is done where it is known."""
        more = {} if share is None else {"fraction": round(share, 3)}
        self.text += control("live", self.run, message=message, **more)

    def fail(self, message: str) -> None:
        """What went wrong, for a run whose steps so far stay on the stage."""
        self.text += control("live", self.run, error=message)

    def timing(self, going: bool) -> None:
        """Whether the autoregressive run is being timed now that this one is over."""
        self.text += control("live", self.run, baseline="being timed now, on the same prompt" if going else "")

    def add(self, lines: list[str]) -> None:
        """Trace lines, without their line ends."""
        if len(self.text) > self.segment:
            self.text = control("live", self.run, first=self.count)
        self.count += len(lines)
        self.text += "".join(line + "\n" for line in lines)
