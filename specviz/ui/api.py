"""The API: ``/run`` returns a trace file, ``/methods`` lists the methods. All other endpoints are private."""

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
"""Boolean arguments, for which text is refused."""


def register(shared: AppState) -> None:
    """Add the endpoints to the page that is being built."""

    def run(
        request: gr.Request, method: str, prompt: str, max_new_tokens: int = 64, temperature: float = 0.0, seed: int = 0,
        top_p: float = 1.0, top_k: int = 0, raw: bool = False, baseline: bool = False, target: str = "",
        draft: str = "", parameters: str = "{}",
    ) -> Iterator[str]:  # fmt: skip
        """Decode speculatively and return the trace.

        The last answer is the whole trace file, one JSON object per line: a run line, a line per step, an end line. With
        baseline, an earlier answer is the file up to its first end line. An error is one sentence with a remedy.

        Args:
            method: a name that /methods lists.
            prompt: the text to answer, or with raw to continue.
            max_new_tokens: maximum number of tokens to write.
            temperature: 0 takes the most likely token every time.
            seed: the same seed draws the same tokens.
            top_p: draw only from the most likely tokens that together have this probability.
            top_k: draw only from this many of the most likely tokens; 0 keeps all.
            raw: continue the prompt instead of answering it.
            baseline: afterwards time the autoregressive run too; a second end line holds its times.
            target: a model's name; empty for the app's default.
            draft: a draft model's name, for methods that need one; empty for the included one.
            parameters: the method's own parameters as a JSON object.
        """
        basics = {"temperature": temperature, "max_new_tokens": max_new_tokens}
        common = {"seed": seed, "top_p": top_p, "top_k": top_k, "raw": raw, "baseline": baseline}
        caller = shared.presence.caller(request)
        try:
            form_state = asked(shared, (method, target, draft, prompt), basics, common, parameters)
            page = shared.pages.enter(caller.session, caller.address)
            for frame in shared.live.run(page, request_form.request(form_state, shared.settings), caller):
                if frame.trace and (frame.trace.end or frame.failure):
                    yield shared.archive.store.text(frame.key)
                if frame.failure:  # the run broke off
                    raise SpecvizError(frame.failure)
        except SpecvizError as error:
            raise gr.Error(str(error), print_exception=False) from None

    gr.api(run, api_name="run", concurrency_limit=None)
    gr.api(methods, api_name="methods", concurrency_limit=None)


def asked(
    shared: AppState, names: tuple[str, str, str, str], basics: dict[str, Any], common: dict[str, Any], own: str
) -> FormState:
    """Build the form state that the page's controls would send. Raises BadInput."""
    method, target, draft, prompt = names
    if draft and not get(method).needs_draft:
        raise BadInput(f"{get(method).title} takes no draft model; leave draft empty.")
    for name in SWITCHES:
        if not isinstance(common[name], bool):  # only the page's own forms may send text
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
    """List every method: its name, title, description, guarantee, and parameters with their bounds."""
    return [{**method.plain(), "parameters": request_form.fields(method.parameters)} for method in all_methods().values()]
