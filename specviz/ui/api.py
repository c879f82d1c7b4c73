"""Public API: ``/run`` returns a trace file, and ``/methods`` lists the methods. The other endpoints are private."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gradio as gr
import msgspec

from specviz.errors import BadInput, SpecvizError, shown
from specviz.methods.registry import all_methods, get
from specviz.ui.app_state import AppState
from specviz.ui.tabs import request_form
from specviz.ui.tabs.request_form import FormState

SWITCHES = ("raw", "baseline")
"""Boolean arguments."""


def register(shared: AppState) -> None:
    """Add the endpoints to the Gradio app that is being built."""

    def run(
        request: gr.Request, method: str, prompt: str, max_new_tokens: int = 64, temperature: float = 0.0, seed: int = 0,
        top_p: float = 1.0, top_k: int = 0, raw: bool = False, baseline: bool = False, target: str = "",
        draft: str = "", parameters: str = "{}",
    ) -> Iterator[str]:  # fmt: skip
        """Decode a prompt speculatively and return the trace.

        The last response is the complete trace file, one JSON object per line: a run line, a line per step, an end line. With
        baseline, the trace without the baseline is sent first.

        Args:
            method: name of a method, as listed by /methods.
            prompt: text to answer or, with raw, to continue.
            max_new_tokens: maximum number of new tokens.
            temperature: sampling temperature; 0 is greedy.
            seed: random seed.
            top_p: sample from the most likely tokens with this total probability.
            top_k: sample from this many of the most likely tokens; 0 for all.
            raw: continue the prompt without a chat template.
            baseline: also time the autoregressive run and add the times to the trace.
            target: name of the target model; empty for the app's default.
            draft: name of a draft model, for methods that need one; empty for the included one.
            parameters: method parameters as a JSON object.
        """
        basics = {"temperature": temperature, "max_new_tokens": max_new_tokens}
        common = {"seed": seed, "top_p": top_p, "top_k": top_k, "raw": raw, "baseline": baseline}
        caller = shared.presence.caller(request)
        try:
            form_state = asked(shared, (method, target, draft, prompt), basics, common, parameters)
            page = shared.pages.enter(caller)
            for frame in shared.live.run(page, request_form.request(form_state, shared.settings), caller):
                if frame.trace and (frame.trace.end or frame.failure):
                    yield shared.archive.store.text(frame.key)
                if frame.failure:
                    raise SpecvizError(frame.failure)
        except SpecvizError as error:
            raise gr.Error(str(error), print_exception=False) from None

    gr.api(run, api_name="run", concurrency_limit=None)
    gr.api(methods, api_name="methods", concurrency_limit=None)


def asked(
    shared: AppState, names: tuple[str, str, str, str], basics: dict[str, Any], common: dict[str, Any], own: str
) -> FormState:
    """Build the form state that the page would send for these arguments. Raises BadInput for invalid arguments."""
    method, target, draft, prompt = names
    if draft and not get(method).needs_draft:
        raise BadInput(f"{get(method).title} takes no draft model; leave draft empty.")
    for name in SWITCHES:
        if not isinstance(common[name], bool):
            raise BadInput.of_field(name, name, f"is {shown(common[name])}; give true or false.")
    try:
        parameters = msgspec.json.decode(own or "{}", type=dict[str, Any])
    except (ValueError, TypeError, RecursionError):
        raise BadInput('parameters must be a JSON object such as {"copied": 8}.') from None
    prompt_as = "raw" if common.pop("raw") else "chat"
    advanced = {**common, "prompt_as": prompt_as, "device": shared.settings.device}
    named = (("basics", basics), ("advanced", advanced), (method, parameters))
    first, second, third = (json.dumps({"of": of, "values": values}) for of, values in named)
    return FormState(method, target or shared.settings.target, prompt, first, second, third, draft)


def methods() -> list[dict[str, Any]]:
    """List the methods with name, title, description, guarantee, and parameters with bounds."""
    return [
        {**method.plain(), "parameters": json.loads(request_form.method_answer(method.name))["fields"]}
        for method in all_methods().values()
    ]
