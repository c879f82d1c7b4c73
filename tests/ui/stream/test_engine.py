"""On a Space that lends its GPU, a run crosses to another process: its events, its refusals and its stop."""

import base64
import io
import sys
import types
from collections import deque
from copy import deepcopy

import gradio as gr
import numpy as np
import pytest
from PIL import Image

from specviz.engine.stop import Stop
from specviz.errors import BadInput, SpecvizError
from specviz.pipeline.request import Memory, Request
from specviz.trace.schema import End, Step
from specviz.ui.stream import engine
from tests.support.traces.image_runs import GRID, image_trace
from tests.support.traces.samples import sample_trace

REQUEST = Request(method="stand", prompt="Say something.", target="scenes-vlm")
"""A target that ships: nothing is fetched for it."""


class Lender:
    """Stands in for the package ``spaces``: what crosses is copied, as it is between two processes."""

    def __init__(self, quota=""):
        self.quota = quota
        self.closed = False

    def GPU(self, duration):
        assert duration > 0
        return lambda task: lambda *given: self.crossing(task, *given)

    def crossing(self, task, *given):
        if self.quota:
            raise gr.Error(self.quota)
        try:
            for event in task(*deepcopy(given)):
                yield deepcopy(event)
        except GeneratorExit:
            self.closed = True
            raise


def lent(monkeypatch, lender, stream, took=None):
    """The way to run on a Space, its GPU and its engine replaced."""
    monkeypatch.setitem(sys.modules, "spaces", lender)
    run = types.ModuleType("specviz.pipeline.runner")
    run.stream = stream
    monkeypatch.setitem(sys.modules, "specviz.pipeline.runner", run)
    return engine.borrowed(deque() if took is None else took)


def replay(request, cancel=None):
    trace = sample_trace(10, method=request.method)
    yield from (trace.run, *trace.steps, trace.end)


def events(run, cancel=None):
    return run(REQUEST, Memory(), cancel or Stop(), lambda message, share: None)


def test_a_run_crosses_whole(monkeypatch):
    took = deque()
    found = list(events(lent(monkeypatch, Lender(), replay, took)))
    assert found == list(replay(REQUEST)) and len(took) == 1


def test_a_stop_lets_the_gpu_go_and_ends_the_run(monkeypatch):
    lender, cancel = Lender(), Stop()
    found = []
    for event in events(lent(monkeypatch, lender, replay), cancel):
        found.append(event)
        if isinstance(event, Step) and event.index == 3:
            cancel.set()
    end = found[-1]
    assert lender.closed and isinstance(end, End) and end.reason == "cancelled"
    assert end.output_ids == tuple(token for step in found[1:-1] for token in step.emitted) and len(found) == 6


def draw(request, cancel):
    trace = image_trace("autoregressive")
    yield from (trace.run, *trace.steps, trace.end)


def test_a_stopped_picture_is_kept_as_far_as_it_was_drawn(monkeypatch):
    """The model stayed with the GPU: finished rows come from the steps, the codes of the row begun are plain squares."""
    cancel, found = Stop(), []
    for event in events(lent(monkeypatch, Lender(), draw), cancel):
        found.append(event)
        if isinstance(event, Step) and event.index == 3 * GRID + 1:
            cancel.set()
    end, whole = found[-1], image_trace("autoregressive").end
    assert end.reason == "cancelled" and len(end.output_ids) == 3 * GRID + 2 and "mean colour" in end.message
    shown, target = (np.asarray(Image.open(io.BytesIO(base64.b64decode(one.picture))), int) for one in (end, whole))
    side = target.shape[0] // GRID
    assert shown.shape == target.shape and not (shown[: 3 * side] == 238).all() and (shown[4 * side :] == 238).all()


def test_a_time_limit_lets_the_gpu_go_and_is_the_reason(monkeypatch):
    lender, now = Lender(), [0.0]
    cancel = Stop(lambda: (60.0, "A run has 60 s here."), lambda: now[0])
    found = []
    for event in events(lent(monkeypatch, lender, replay), cancel):
        found.append(event)
        now[0] += 20.0
    end = found[-1]
    assert lender.closed and isinstance(end, End)
    assert (end.reason, end.message, len(found)) == ("time_limit", "A run has 60 s here.", 5)


def test_a_refusal_keeps_its_words(monkeypatch):
    def refuse(request, cancel):
        raise BadInput("The prompt is too long; shorten it.")
        yield

    with pytest.raises(SpecvizError, match="The prompt is too long; shorten it."):
        list(events(lent(monkeypatch, Lender(), refuse)))


def test_a_used_up_quota_is_told(monkeypatch):
    with pytest.raises(SpecvizError, match="quota"):
        list(events(lent(monkeypatch, Lender("Your quota is used up. Come back tomorrow."), replay)))


def test_what_a_run_needs_is_fetched_with_progress_before_a_gpu_is_borrowed(monkeypatch):
    happened = []

    def prepared(name, progress):
        progress(f"Fetching {name}", 0.5)

    monkeypatch.setattr("specviz.models.hub.in_subprocess.load_in_subprocess", prepared)

    def seen(request, cancel):
        happened.append("on the GPU")
        yield from replay(request)

    run = lent(monkeypatch, Lender(), seen)
    asked = Request(method="stand", prompt="a", target="smollm2-135m-instruct", draft="smollm2-360m-instruct")
    list(run(asked, Memory(), Stop(), lambda message, share: happened.append(f"{message} {share}")))
    assert happened == [
        "Looking for smollm2-135m-instruct None", "Fetching smollm2-135m-instruct 0.5",
        "Looking for smollm2-360m-instruct None", "Fetching smollm2-360m-instruct 0.5",
        "Waiting for a GPU to load the model None", "on the GPU",
    ]  # fmt: skip


def test_a_run_ends_by_itself_before_the_gpu_is_taken_away(monkeypatch):
    limits = []

    class Timed(Lender):
        def GPU(self, duration):
            limits.append(duration)
            return super().GPU(duration)

    def spent(request, cancel):
        cancel.begin()
        began = cancel._since
        for seconds in (0, 39, 41):
            monkeypatch.setattr(cancel, "_clock", lambda seconds=seconds: began + seconds)
            limits.append(cancel.is_set())
        yield from replay(request)

    class Here(Timed):
        def crossing(self, task, *given):
            yield from task(*given)

    list(events(lent(monkeypatch, Here(), spent)))
    assert limits == [60, False, False, True]
