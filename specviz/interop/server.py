"""Client of a running server: vLLM, SGLang, llama.cpp, or any other with OpenAI's chat completions.

Tokens arrive in a stream, and each arrival is a step. vLLM with ``--per-request-spec-decode-metrics detailed`` also counts
drafted and accepted tokens per verified draft. llama.cpp counts them up to each token. Other servers report only arrivals.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import Any

from msgspec import Struct

from specviz.engine.stop import Stop
from specviz.errors import BadInput, SpecvizError, shown
from specviz.interop.chain import ChainSteps, run_of, short_name
from specviz.interop.client import BrokenOff, Cancelled, Client, address, message
from specviz.interop.responses import (
    REASONS,
    Arrival,
    Counted,
    Response,
    Speculation,
    Timings,
    TokenReader,
    add_rounds,
    chain_round,
    converted,
    counted_rounds,
    rounds_by_counts,
)
from specviz.interop.server_counters import Sampler, with_samples
from specviz.pipeline.request import Request
from specviz.trace.schema import MAX_TEXT, End, Line, Run, Sampling, Step, Trace

TOP = 3
KINDS = {"vllm": "vLLM", "sglang": "SGLang", "llama.cpp": "llama.cpp", "openai": "an OpenAI-compatible server"}
_FIELDS = {
    "vllm": ("return_token_ids", "repetition_penalty"),
    "llama.cpp": ("timings_per_token", "repeat_penalty"),
    "sglang": ("return_spec_tokens_details", "repetition_penalty"),
}
"""Request fields by kind of server: the one that makes it report its rounds, and the penalty for repetitions."""
REFUSING = frozenset({400, 422, 501})
"""Status codes of a refusal whose cause may be ``logprobs``."""


@dataclass(frozen=True)
class Server:
    """Server that answered: address, kind, and the model that it serves."""

    url: str
    kind: str
    model: str
    key: str = ""

    @property
    def title(self) -> str:
        """Display name of the kind of server."""
        return KINDS[self.kind]


class _Model(Struct):
    id: Line | None = None
    owned_by: str | None = None


class _Models(Struct):
    data: tuple[_Model, ...] | None = None


def identify(url: str, key: str = "", cancel: threading.Event | None = None) -> Server:
    """Identify the server at ``url``. Raises BadInput, with a remedy, if no server answers or it serves no language model."""
    base = address(url)
    place = f"{base}/v1/models"
    try:
        with Client(base, key, cancel) as client:
            status, text = client.page("/v1/models")
    except BrokenOff as problem:
        raise BadInput(f"Nothing answers at {place}: {problem} Is the server running, and is this its address?") from None
    if status in (401, 403):
        raise BadInput(
            f"{base} answers with status {status}: "
            f"{'the server refuses this key' if key else 'the server needs a key; add --key'}."
        )
    if status != 200:
        raise BadInput(f"{place} answers with status {status}; is it an OpenAI-compatible server?")
    try:
        models = converted(_Models, text).data or (_Model(),)
    except BadInput as problem:
        raise BadInput(f"{place} did not return a list of models ({problem}) Is it an OpenAI-compatible server?") from None
    name, owner = models[0].id, models[0].owned_by or ""
    if not name:
        raise BadInput(f"{place} lists no model; does it serve language models?")
    return Server(base, {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}.get(owner, "openai"), name, key)


@dataclass
class Answer:
    """One response as it arrives. Iterate :meth:`events`, then read ``trace``, which includes the server's own counts.

    ``ask``: request whose prompt, length and sampling are sent. ``logprobs``: whether to request log-probabilities; without them,
    p is unknown.
    """

    server: Server
    ask: Request
    cancel: Stop = field(default_factory=Stop)
    logprobs: bool = True
    trace: Trace | None = None
    name: str = ""
    """The server's id of this response, with which the plugin's file name begins."""
    prompt_ids: tuple[int, ...] = ()
    """Token ids of the prompt under the server's tokenizer, () if not reported."""
    _arrivals: list[Arrival] = field(default_factory=list)
    _counts: Speculation | None = None
    _summary: str = ""
    _reason: str = ""
    _broken: SpecvizError | None = None

    def __post_init__(self) -> None:
        self._reader = TokenReader(doubtful=self.server.kind == "llama.cpp")

    def events(self) -> Iterator[Run | Step | End]:
        """Yield the run, one step per arrival, and the end; after a failure, the end has the reason and the steps so far.

        Stops within one polling interval of the client once ``cancel`` is set. Raises BadInput if no token arrives.
        """
        with Sampler(self.server.url, self.server.key, self.cancel) as sampler:
            arrivals = self._received(sampler.began)
            first = next(arrivals, None)
            if first is None and not isinstance(self._broken, Cancelled):
                why_not = "answered without a token; request more tokens, or read the server's log."
                raise BadInput(f"{self.server.url} {f'did not answer: {self._broken}' if self._broken else why_not}")
            run, steps = self._run(), self._steps()
            yield run
            try:
                for arrival in chain([first], arrivals) if first else arrivals:
                    self._arrivals.append(arrival)
                    step = steps.add(chain_round(arrival))
                    yield step.replace(notes=(*step.notes, *sampler.news()))
            except (BrokenOff, BadInput) as problem:
                self._broken = problem
        broken = ""
        if isinstance(self._broken, Cancelled):
            broken = self.cancel.reason
            self._reason = "time_limit" if broken else "cancelled"
        elif self._broken:
            self._reason, broken = "error", f"The server broke off: {self._broken} The steps so far are kept."
        words = (broken, self._summary, self._reader.always_one)
        end = steps.end(self._reason or "cancelled", " ".join(filter(None, words)))
        yield end
        self.trace = with_samples(self._whole(Trace(run, tuple(steps.steps), end)), sampler.samples)

    def _received(self, before: int) -> Iterator[Arrival]:
        """Yield arrivals of tokens, each with the time since the previous one."""
        for arrival in counted_rounds(self._heard()):
            now = time.perf_counter_ns()
            yield from self._reader.bounded(replace(arrival, gap_ns=now - before))
            before = now

    def _heard(self) -> Iterator[Counted]:
        """Yield tokens and the counts sent with them. Stores other reports of the server, and the reason for an early end."""
        try:
            with Client(self.server.url, self.server.key, self.cancel) as client:
                for event in self._answered(client):
                    if not event:
                        return
                    self._keep(event)
                    timings = event.timings or Timings()
                    for choice in (event.choices or ())[:1]:
                        self._reason = REASONS.get(choice.finish_reason or "", self._reason)
                        if tokens := self._reader.read(choice):
                            yield tokens, timings.draft_n, timings.draft_n_accepted or 0
                    if self.cancel.is_set():
                        raise Cancelled("Stopped.")
            if not self._reason:
                raise BrokenOff("the connection closed before the end.")
        except (BrokenOff, BadInput, Cancelled) as problem:
            self._broken = problem

    def _answered(self, client: Client) -> Iterator[Response | None]:
        """Yield the events of the response. If log-probabilities may have caused a refusal, repeats the request without them."""
        path = f"/v1/{'completions' if self.ask.raw else 'chat/completions'}"
        try:
            yield from client.events(path, self._body())
        except BrokenOff as refusal:
            if not self.logprobs or refusal.status not in REFUSING:
                raise
            self.logprobs = False
            yield from client.events(path, self._body())

    def _keep(self, event: Response) -> None:
        if event.error is not None:
            raise BrokenOff(message(event.error))
        self.name = self.name or event.id or ""
        counts, timings = event.speculation, event.timings
        if counts.num_draft_tokens is not None:
            self._summary = (
                f"The server counts {counts.num_accepted_draft_tokens} of {counts.num_draft_tokens} drafted "
                f"tokens accepted in {counts.num_spec_steps} rounds with a draft."
            )
        elif timings and timings.draft_n:
            self._summary = f"The server counts {timings.draft_n_accepted} of {timings.draft_n} drafted tokens accepted."
        elif details := event.sglext_spec or (event.sglext or {}).get("spec"):
            self._summary = f"The server says: {shown(details, 300)}"
        if counts.per_step_accepted is not None:
            self._counts = counts
        self.prompt_ids = event.prompt or self.prompt_ids

    def _body(self) -> dict[str, Any]:
        ask, kind = self.ask, self.server.kind
        body: dict[str, Any] = {
            "model": self.server.model, "max_tokens": ask.max_new_tokens, "temperature": ask.temperature or 0.0,
            "seed": ask.seed, "top_p": ask.top_p,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        body |= {"prompt": ask.prompt} if ask.raw else {"messages": [{"role": "user", "content": ask.prompt}]}
        if self.logprobs:
            body |= {"logprobs": TOP} if ask.raw else {"logprobs": True, "top_logprobs": TOP}
        if ask.top_k:
            body["top_k"] = ask.top_k
        if kind in _FIELDS:  # without these settings, a server applies its own or those of the model's generation_config.json
            reports, penalty = _FIELDS[kind]
            body |= {reports: True, penalty: 1.0, "min_p": 0.0, "top_k": ask.top_k or -1}
        return body

    def _steps(self) -> ChainSteps:
        """Return an empty :class:`ChainSteps` after the prompt. A prompt with unknown ids counts as one token."""
        ids = self.prompt_ids or [self._reader.number(self.ask.prompt[:MAX_TEXT])]
        return ChainSteps(self._reader, ids[-1], len(ids), rule="match" if self.ask.temperature else "greedy")

    def _run(self) -> Run:
        ask, server = self.ask, self.server
        warnings = ["Times are gaps between arrivals: drafting, the pass and the network together."]
        if server.kind in ("openai", "sglang"):
            warnings.append("A round is the tokens that arrived together: this server does not mark rounds.")
        if not self.logprobs:
            warnings.append("The server gives no log probabilities: p is not known.")
        return run_of(
            short_name(server.model),
            f"served_{server.kind.replace('.', '_')}",
            f"Served by {server.title}",
            Sampling(ask.temperature or 0.0, ask.top_k, ask.top_p, ask.seed),
            ask.max_new_tokens,
            device="server",
            prompt=ask.prompt,
            prompt_pieces=(ask.prompt[:MAX_TEXT],),
            chat_template=not ask.raw,
            machine=server.url,
            warnings=tuple(warnings),
        )

    def _whole(self, seen: Trace) -> Trace:
        """Return the trace split by the server's counts per draft, or unchanged without counts.

        A round's time ends when its last token arrives: an arrival may hold several rounds, or part of one.
        """
        if not self._counts or self._reason == "error":
            return seen
        assert seen.end is not None
        run, reason, steps = seen.run, seen.end.reason, self._steps()
        try:
            rounds, warning = rounds_by_counts([token for one in self._arrivals for token in one.tokens], self._counts)
            clock = accumulate(arrival.gap_ns for arrival in self._arrivals)
            moments = [moment for moment, arrival in zip(clock, self._arrivals, strict=True) for _ in arrival.tokens]
            ends = [moments[end - 1] for end in accumulate(len(one.tokens) for one in rounds)]
            timed = [replace(one, gap_ns=end - before) for one, end, before in zip(rounds, ends, [0, *ends], strict=False)]
            add_rounds(steps, timed, reason)
        except BadInput as problem:
            return seen.replace(run=run.replace(warnings=(*run.warnings, f"The server's counts were ignored. {problem}")))
        if warning:
            run = run.replace(warnings=(*run.warnings, warning))
        return Trace(run, tuple(steps.steps), steps.end(reason, seen.end.message))
