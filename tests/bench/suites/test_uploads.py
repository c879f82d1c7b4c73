"""The uploads suite brings files that are good and that differ, and reads the page's answer rightly."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from specviz.bench.kit.report import Report
from specviz.bench.runner import SHORT, SUITES
from specviz.bench.suites import uploads
from specviz.bench.suites.uploads import UploadOutcome
from specviz.trace import store
from specviz.ui.stream.opening import Opening


def test_a_lesson_is_a_good_file_of_the_size_asked_for(tmp_path: Path) -> None:
    made = uploads.lesson(0.2)
    file = tmp_path / "lesson.spectrace.jsonl"
    file.write_bytes(made)
    assert 0.8 * 0.2e6 < len(made) < 1.2 * 0.2e6
    opened = asyncio.run(Opening(store.TraceStore()).open(file))
    assert opened.outline.steps > 20 and opened.outline.end is not None
    assert made == uploads.lesson(0.2) != uploads.lesson(0.2, 1)


def completed(success: bool, **output: object) -> str:
    return "data: " + json.dumps({"msg": "process_completed", "success": success, "output": output}) + "\n\n"


def test_an_answer_is_a_file_opened_or_a_reason() -> None:
    other = 'data: {"msg": "heartbeat"}\n\n'
    assert uploads.refusal(other + completed(True, data=["opened: a run"])) == ""
    assert "line 3" in uploads.refusal(completed(True, data=["That file was not opened. line 3"]))
    assert uploads.refusal(completed(False, error="Errno 2")) == "Errno 2"
    assert uploads.refusal(completed(False, error=None)) and uploads.refusal(other) == "no answer"


def test_who_was_refused_is_counted_and_told() -> None:
    report = Report("uploads", {})
    uploads.add_uploads(
        report,
        "one file for all",
        [UploadOutcome(1.0), UploadOutcome(3.0), UploadOutcome(9.0, "no room"), UploadOutcome(2.0)],
        5.0,
    )
    served, middle, late = report.rows
    assert served.value == 75.0 and served.reached is False and "1 refused; those read: no room" in served.detail
    assert (middle.value, late.value) == (2.0, 3.0)
    assert "uploads" in SUITES and "uploads" in SHORT
