"""Texts of the stage: a recorded run's control line and file, or a live run's control line alone.

The lines of a live run reach the page as server-sent events, once its control line says ``follow``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


def control(mode: str, run: str, **more: object) -> str:
    """Control line for the stage. ``mode`` is "live" or "recorded", ``run`` names the run."""
    return json.dumps({"kind": "stage", "mode": mode, "run": run, **more}, separators=(",", ":")) + "\n"


def recorded(run: str, text: str, watch: str = "") -> str:
    """A whole trace file for the stage, which plays it from its first step; ``watch`` is the recording's note."""
    return control("recorded", run, **({"watch": watch} if watch else {})) + text


@dataclass
class Feed:
    """State of a live run, sent to its page as a whole at every change.

    ``message`` and ``fraction`` describe the progress before the first step. With ``follow`` the run has lines, which stay on
    the stage even if there is an ``error``. ``timing``: the run is over, and its autoregressive run is being timed.
    """

    run: str
    follow: bool = False
    message: str = ""
    fraction: float | None = None
    error: str = ""
    timing: bool = False

    @property
    def text(self) -> str:
        """The control line of this state."""
        states: dict[str, object] = {"baseline": "being timed now, on the same prompt" if self.timing else ""}
        if self.follow:
            states["follow"] = True
        elif self.message:
            states["message"] = self.message
            if self.fraction is not None:
                states["fraction"] = round(self.fraction, 3)
        if self.error:
            states["error"] = self.error
        return control("live", self.run, **states)
