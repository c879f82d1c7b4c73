"""Answers of a running server: vLLM, SGLang, llama.cpp, or anything that speaks OpenAI's chat completions.

A prompt is sent, tokens come in a stream, and each arrival is a step on the stage. What a server says differs: vLLM with
``--per-request-spec-decode-metrics detailed`` says for each verified draft how many tokens it had and how many were kept;
llama.cpp counts drafted and accepted tokens up to each token; the others are seen by their arrivals alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from specviz.engine.stop import why
from specviz.engines.chain import LARGEST_TOKEN, MOST_PROMPT, MOST_TOKENS, ChainSteps, fitted_run
from specviz.engines.client import BrokenOff, Cancelled, Client, Refused, address, message
from specviz.engines.fields import Fields
from specviz.engines.responses import (
    ALWAYS_ONE,
    REASONS,
    TIMES,
    Arrival,
    CountedRounds,
    TokenReader,
    bounded,
    chain_round,
    rounds_by_counts,
)
from specviz.engines.server_counters import Sampler, with_samples
from specviz.errors import BadInput, shown
from specviz.trace.schema import MAX_NODES, MAX_TEXT, End, Run, Sampling, Step, Trace
from specviz.version import __version__

TOP = 3
MOST_MODELS = 10_000
KINDS = {"vllm": "vLLM", "sglang": "SGLang", "llama.cpp": "llama.cpp", "openai": "an OpenAI-compatible server"}
ARRIVALS = "Rounds are what arrived together: this server does not tell them apart."
UNWEIGHED = "The server gives no log probabilities: p is not known."
REFUSING = frozenset({400, 422, 501})
"""Status of a server that may refuse nothing but ``logprobs``."""


@dataclass(frozen=True)
class Server:
    """A server that answered: its address, what it is, and the model it serves."""

    url: str
    kind: str
    model: str
    key: str = ""

    @property
    def title(self) -> str:
        """Its kind, for people."""
        return KINDS[self.kind]


@dataclass(frozen=True)
class Ask:
    """A prompt for a server. ``raw`` sends it as text to go on from, else as a user's turn. Without ``logprobs`` none are asked
    for, and p stays unknown."""

    prompt: str
    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    raw: bool = False
    top_p: float = 1.0
    top_k: int = 0
    logprobs: bool = True

    def __post_init__(self) -> None:
        if not self.prompt.strip():
            raise BadInput("The prompt is empty; give some text.")
        if len(self.prompt) > 1_000_000:
            raise BadInput(f"The prompt has {len(self.prompt)} characters; give 1000000 at most.")
        if not -(2**63) <= self.seed < 2**63:
            raise BadInput(f"The seed is {self.seed}; choose a number from -2^63 to 2^63 - 1.")
        if not 1 <= self.max_new_tokens <= 4096:
            raise BadInput(f"max_new_tokens is {self.max_new_tokens}; choose a number from 1 to 4096.")
        if not 0.0 <= self.temperature <= 5.0:
            raise BadInput(f"temperature is {self.temperature}; choose a number from 0 (greedy) to 5.")


def look(url: str, key: str = "", cancel: threading.Event | None = None) -> Server:
    """What answers at this address. Raises BadInput, with what to do, where nothing does."""
    base = address(url)
    place = f"{base}/v1/models"
    try:
        with Client(base, key, cancel) as client:
            status, text = client.page("/v1/models")
    except BrokenOff as problem:
        raise BadInput(f"Nothing answers at {place}: {problem} Is the server running, and is this its address?") from None
    if status in (401, 403):
        words = "it refuses this key" if key else "it wants a key; give it with --key"
        raise BadInput(f"{base} answers with status {status}: {words}.")
    if status != 200:
        raise BadInput(f"{place} answers with status {status}; is this a server of OpenAI's kind?")
    try:
        models = Fields.parsed(text).objects("data", MOST_MODELS)
        found = [(model.text("id", 1024), model.text("owned_by", 1024)) for model in models]
    except BadInput as problem:
        raise BadInput(f"{place} is no list of models ({problem}) Is this a server of OpenAI's kind?") from None
    if not found or not found[0][0]:
        raise BadInput(f"{place} names no model; is it a server of language models?")
    name, owner = found[0]
    return Server(base, {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}.get(owner or "", "openai"), name, key)


@dataclass
class Answer:
    """One answer as it arrives: iterate :meth:`events`, then read ``trace``, which the server's own counts have put right."""

    server: Server
    ask: Ask
    cancel: threading.Event = field(default_factory=threading.Event)
    trace: Trace | None = None
    name: str = ""
    """What the server calls this answer: the plugin's file of it begins so."""
    prompt_ids: tuple[int, ...] = ()
    """Token ids of the prompt as the server read it, empty where it does not say."""
    _arrivals: list[Arrival] = field(default_factory=list)
    _counts: tuple[list[int], list[int]] | None = None
    _summary: str = ""
    _reason: str = ""
    _unweighed: bool = False

    def __post_init__(self) -> None:
        self._reader = TokenReader(doubtful=self.server.kind == "llama.cpp")

    def events(self) -> Iterator[Run | Step | End]:
        """The run, a step an arrival, the end. A server that breaks off ends it with what there is, and says why.

        Once ``cancel`` is set the end comes within a turn of the client.
        """
        sampler = Sampler(self.server.url, self.server.key, self.cancel)
        try:
            yield from self._sampled(sampler)
        finally:
            sampler.stop()

    def _sampled(self, sampler: Sampler) -> Iterator[Run | Step | End]:
        run: Run | None = None
        steps: ChainSteps | None = None
        broken = ""
        started = sampler.start()
        try:
            for arrival in self._received(started):
                if run is None or steps is None:
                    run, steps = self._run(), self._steps()
                    yield run
                if not steps.room(len(arrival.tokens)):
                    raise BrokenOff(f"it wrote on past {len(steps.output)} tokens.")
                self._arrivals.append(arrival)
                step = steps.add(chain_round(arrival, greedy=not self.ask.temperature))
                yield replace(step, notes=(*step.notes, *sampler.news()))
        except Cancelled:
            broken = why(self.cancel)
            self._reason = "time_limit" if broken else "cancelled"
            if run is None or steps is None:
                run, steps = self._run(), self._steps()
                yield run
        except (BrokenOff, BadInput) as problem:
            if run is None:
                raise BadInput(f"{self.server.url} did not answer: {problem}") from None
            self._reason, broken = "error", f"The server broke off: {problem} The steps so far are kept."
        if run is None or steps is None:
            raise BadInput(f"{self.server.url} answered without a token; ask for more, or look at the server's log.")
        sampler.stop()
        words = (broken, self._summary, ALWAYS_ONE if self._reader.always_one else "")
        end = steps.end(self._reason or "cancelled", " ".join(part for part in words if part))
        yield end
        self.trace = with_samples(self._whole(Trace(run, tuple(steps.steps), end)), sampler.samples)

    def _received(self, started: int) -> Iterator[Arrival]:
        """Arrivals of tokens; what else the server says is kept aside."""
        groups, before, ended = CountedRounds(), started, None
        try:
            with Client(self.server.url, self.server.key, self.cancel) as client:
                for event in self._answered(client):
                    if event is None:
                        break
                    self._keep(event)
                    for choice in event.objects("choices", 1):
                        self._reason = REASONS.get(choice.text("finish_reason") or "", self._reason)
                        tokens = self._reader.read(choice)
                        for arrival in groups.take(tokens, event.inner("timings")) if tokens else ():
                            now = time.perf_counter_ns()
                            yield from bounded(replace(arrival, gap_ns=now - before))
                            before = now
                    if self.cancel.is_set():
                        raise Cancelled("Stopped.")
                else:
                    if not self._reason:
                        raise BrokenOff("the connection closed before the end.")
        except (BrokenOff, BadInput, Cancelled) as problem:
            ended = problem
        for arrival in groups.rest():
            yield from bounded(replace(arrival, gap_ns=time.perf_counter_ns() - before))
        if ended is not None:
            raise ended

    def _answered(self, client: Client) -> Iterator[Fields | None]:
        """Events of the answer, asked for once more without log probabilities where a server may refuse them."""
        path = f"/v1/{'completions' if self.ask.raw else 'chat/completions'}"
        self._unweighed = not self.ask.logprobs
        try:
            yield from client.events(path, self._body())
        except Refused as refusal:
            if self._unweighed or refusal.status not in REFUSING:
                raise
            self._unweighed = True
            yield from client.events(path, self._body())

    def _keep(self, event: Fields) -> None:
        if "error" in event:
            raise BrokenOff(message(event.found))
        self.name = self.name or event.text("id", 1024) or ""
        if "metrics" in event and (counts := event.inner("metrics").inner("speculative_decoding")):
            if "per_step_accepted" in counts and "per_step_drafted" in counts:
                of_step = (counts.wholes(f"per_step_{name}", MOST_TOKENS, MAX_NODES) for name in ("accepted", "drafted"))
                self._counts = (next(of_step), next(of_step))
            kept, made = counts.whole("num_accepted_draft_tokens"), counts.whole("num_draft_tokens")
            self._summary = f"The server counts {kept} of {made} drafted tokens accepted in "
            self._summary += f"{counts.whole('num_spec_steps')} rounds with a draft."
        elif (timings := event.inner("timings")).whole("draft_n"):
            kept, made = timings.whole("draft_n_accepted"), timings.whole("draft_n")
            self._summary = f"The server counts {kept} of {made} drafted tokens accepted."
        elif told := event.found.get("sglext_spec") or event.inner("sglext").found.get("spec"):
            self._summary = f"The server says: {shown(told, 300)}"
        for place in (event, *event.objects("choices", 1)):
            if "prompt_token_ids" in place:
                self.prompt_ids = tuple(place.wholes("prompt_token_ids", MOST_PROMPT, LARGEST_TOKEN))

    def _body(self) -> dict[str, Any]:
        ask, kind = self.ask, self.server.kind
        body: dict[str, Any] = {
            "model": self.server.model, "max_tokens": ask.max_new_tokens, "temperature": ask.temperature, "seed": ask.seed,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        if ask.raw:
            body |= {"prompt": ask.prompt}
        else:
            body |= {"messages": [{"role": "user", "content": ask.prompt}]}
        if not self._unweighed:
            body |= {"logprobs": TOP} if ask.raw else {"logprobs": True, "top_logprobs": TOP}
        if ask.top_p < 1:
            body["top_p"] = ask.top_p
        if ask.top_k:
            body["top_k"] = ask.top_k
        if kind == "vllm":
            body["return_token_ids"] = True
        if kind == "llama.cpp":
            body["timings_per_token"] = True
        if kind == "sglang":
            body["return_spec_tokens_details"] = True
        return body

    def _steps(self) -> ChainSteps:
        """Room for steps after the prompt, whose place is held by one token where the server does not say its ids."""
        ids = self.prompt_ids or [self._reader.number(self.ask.prompt[:MAX_TEXT])]
        return ChainSteps(self._reader, ids[-1], len(ids))

    def _run(self) -> Run:
        ask, server = self.ask, self.server
        words = (ARRIVALS if server.kind in ("openai", "sglang") else "", UNWEIGHED if self._unweighed else "")
        run = Run(
            modality="text",
            target=server.model.rstrip("/").rsplit("/", 1)[-1] if server.model.startswith("/") else server.model,
            method=f"served_{server.kind.replace('.', '_')}",
            title=f"Served by {server.title}",
            exactness="exact",
            parameters={},
            sampling=Sampling(ask.temperature, ask.top_k, ask.top_p, ask.seed),
            device="server",
            dtype="",
            tier="served",
            prompt=ask.prompt,
            prompt_pieces=(ask.prompt[:MAX_TEXT],),
            max_new_tokens=ask.max_new_tokens,
            chat_template=not ask.raw,
            libraries={"specviz": __version__},
            machine=server.url,
            recorded_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            warnings=(TIMES, *(word for word in words if word)),
        )
        return fitted_run(run)

    def _whole(self, seen: Trace) -> Trace:
        """The trace by the server's counts a draft, where it gave them; else what was seen."""
        if self._counts is None or self._reason == "error":
            return seen
        assert seen.end is not None
        try:
            tokens = [token for arrival in self._arrivals for token in arrival.tokens]
            rounds, warning = rounds_by_counts(tokens, *self._counts)
            steps, cut = self._steps(), seen.end.reason if seen.end.reason in ("eos", "budget") else None
            for place, (arrival, gap) in enumerate(zip(rounds, _gaps(self._arrivals, rounds), strict=True)):
                at_end = cut if place == len(rounds) - 1 else None
                steps.add(chain_round(replace(arrival, gap_ns=gap), at_end, greedy=not self.ask.temperature))
        except BadInput as problem:
            return replace(seen, run=_warned(seen.run, f"The server's counts were left aside. {problem}"))
        run = _warned(seen.run, warning) if warning else seen.run
        return Trace(run, tuple(steps.steps), steps.end(seen.end.reason, seen.end.message))


def _warned(run: Run, warning: str) -> Run:
    return replace(run, warnings=(*run.warnings, warning))


def _gaps(arrivals: Sequence[Arrival], rounds: Sequence[Arrival]) -> list[int]:
    """When each round's last token had come, as gaps: arrivals may hold several rounds, or a part of one."""
    ends, clock = [], 0
    for arrival in arrivals:
        clock += arrival.gap_ns
        ends += [clock] * len(arrival.tokens)
    gaps, place, before = [], 0, 0
    for round_ in rounds:
        place += len(round_.tokens)
        now = ends[min(place, len(ends)) - 1]
        gaps.append(now - before)
        before = now
    return gaps
