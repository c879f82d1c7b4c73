"""Client of a running server: vLLM, SGLang, llama.cpp, or anything that speaks OpenAI's chat completions.

A prompt is sent, tokens come in a stream, and each arrival is a step on the stage. What a server tells differs: vLLM with
``--per-request-spec-decode-metrics detailed`` says for each verified draft how many tokens it had and how many were kept;
llama.cpp counts drafted and accepted tokens up to each token; the others are seen by their arrivals alone.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import httpx

import specviz
from specviz.engines.chain import ChainSteps
from specviz.engines.responses import TIMES, Arrival, CountedRounds, ToldTexts, chain_round, rounds_by_counts, told_tokens
from specviz.engines.server_counters import Sampler, connection, with_samples
from specviz.errors import BadInput, SpecvizError
from specviz.trace.metrics import summarise
from specviz.trace.schema import MAX_STEPS, End, Run, Sampling, Step, Trace

MOST_BYTES = 64 << 20
"""Most bytes of one answer; one line of it, ``MOST_LINE``."""
MOST_LINE = 4 << 20
TOP = 3
KINDS = {"vllm": "vLLM", "sglang": "SGLang", "llama.cpp": "llama.cpp", "openai": "an OpenAI-compatible server"}
ARRIVALS = "Rounds are what arrived together: this server does not tell them apart."


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
    """A prompt for a server. ``raw`` sends it as text to go on from, else as a user's turn."""

    prompt: str
    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    raw: bool = False
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if not self.prompt.strip():
            raise BadInput("The prompt is empty; give some text.")
        if not 1 <= self.max_new_tokens <= 4096:
            raise BadInput(f"max_new_tokens is {self.max_new_tokens}; choose a number from 1 to 4096.")
        if not 0.0 <= self.temperature <= 5.0:
            raise BadInput(f"temperature is {self.temperature}; choose a number from 0 (greedy) to 5.")


def address(url: str) -> str:
    """The server's address without a path. Raises BadInput for what is no http address."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise BadInput(f"{url[:200]!r} is no server's address; give one like http://127.0.0.1:8000.")
    return f"{parts.scheme}://{parts.netloc}"


def look(url: str, key: str = "") -> Server:
    """What answers at this address. Raises BadInput, with what to do, where nothing does."""
    base = address(url)
    with connection(key) as client:
        models = _json(client, f"{base}/v1/models")
        names = [str(entry.get("id", "")) for entry in models.get("data") or [] if isinstance(entry, Mapping)]
        if not names:
            raise BadInput(f"{base} names no model at /v1/models; is it a server of language models?")
        owner = str((models.get("data") or [{}])[0].get("owned_by", ""))
        kind = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}.get(owner, "openai")
    return Server(base, kind, names[0], key)


@dataclass
class Answer:
    """One answer as it arrives: iterate :meth:`events`, then read ``trace``, which the server's own counts have put right."""

    server: Server
    ask: Ask
    cancel: threading.Event = field(default_factory=threading.Event)
    trace: Trace | None = None
    _texts: ToldTexts = field(default_factory=ToldTexts)
    _arrivals: list[Arrival] = field(default_factory=list)
    _prompt_ids: list[int] = field(default_factory=list)
    _told: dict[str, Any] = field(default_factory=dict)
    _reason: str = ""
    _message: str = ""
    name: str = ""
    """What the server calls this answer: the plugin's file of it begins so."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Token ids of the prompt as the server read it, empty where it does not tell."""
        return tuple(self._prompt_ids)

    def events(self) -> Iterator[Run | Step | End]:
        """The run, a step an arrival, the end. A server that breaks off ends it with what there is, and says why."""
        sampler = Sampler(self.server.url, self.server.key)
        try:
            yield from self._sampled(sampler)
        finally:
            sampler.stop()

    def _sampled(self, sampler: Sampler) -> Iterator[Run | Step | End]:
        run: Run | None = None
        steps: ChainSteps | None = None
        started = sampler.start()
        try:
            for arrival in self._received(started):
                self._arrivals.append(arrival)
                if run is None or steps is None:
                    run = self._run()
                    steps = ChainSteps(self._texts, self._prompt())
                    yield run
                if len(steps.steps) < MAX_STEPS:
                    step = steps.add(chain_round(arrival, greedy=not self.ask.temperature))
                    yield replace(step, notes=(*step.notes, *sampler.news()))
                if self.cancel.is_set():
                    self._reason = "cancelled"
                    break
        except (httpx.HTTPError, _BrokenOff) as problem:
            if run is None:
                raise BadInput(f"{self.server.url} did not answer: {_why(problem)}") from None
            self._reason, self._message = "error", f"The server broke off: {_why(problem)} The steps so far are kept."
        if run is None or steps is None:
            raise BadInput(f"{self.server.url} answered without a token; ask for more, or look at the server's log.")
        sampler.stop()
        end = self._end(steps.output, steps.steps, steps)
        yield end
        self.trace = with_samples(self._whole(Trace(run, tuple(steps.steps), end)), sampler.samples)

    def _received(self, started: int) -> Iterator[Arrival]:
        """Arrivals of tokens; what else the server says goes to ``_told``."""
        url = f"{self.server.url}/v1/{'completions' if self.ask.raw else 'chat/completions'}"
        groups, before = CountedRounds(), started
        with connection(self.server.key) as client, client.stream("POST", url, json=self._body()) as answer:
            if answer.status_code != 200:
                raise _BrokenOff(_refusal(answer))
            for event in _events(answer):
                self._keep(event)
                for choice in event.get("choices") or ():
                    self._reason = {"stop": "eos", "length": "budget"}.get(choice.get("finish_reason") or "", self._reason)
                    tokens = told_tokens(choice, self._texts)
                    told = groups.take(tokens, event.get("timings") or {}) if tokens else None
                    if told is not None:
                        now = time.perf_counter_ns()
                        yield Arrival(told.tokens, now - before, told.drafted)
                        before = now
            rest = groups.rest()
            if rest is not None:
                yield Arrival(rest.tokens, time.perf_counter_ns() - before, rest.drafted)

    def _keep(self, event: Mapping[str, Any]) -> None:
        if event.get("error"):
            raise _BrokenOff(str(event["error"])[:300])
        self.name = self.name or str(event.get("id") or "")
        for name in ("metrics", "usage", "timings", "sglext_spec", "sglext"):
            if event.get(name):
                self._told[name] = event[name]
        if event.get("prompt_token_ids"):
            self._prompt_ids = [int(token) for token in event["prompt_token_ids"]]
        for choice in event.get("choices") or ():
            if choice.get("prompt_token_ids"):
                self._prompt_ids = [int(token) for token in choice["prompt_token_ids"]]

    def _body(self) -> dict[str, Any]:
        ask, kind = self.ask, self.server.kind
        body: dict[str, Any] = {
            "model": self.server.model, "max_tokens": ask.max_new_tokens, "temperature": ask.temperature, "seed": ask.seed,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        if ask.raw:
            body |= {"prompt": ask.prompt, "logprobs": TOP}
        else:
            body |= {"messages": [{"role": "user", "content": ask.prompt}], "logprobs": True, "top_logprobs": TOP}
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

    def _prompt(self) -> list[int]:
        """Token ids of the prompt, where the server tells them; else its place is held by one token."""
        return self._prompt_ids or [self._texts.learn(None, self.ask.prompt[:4096])]

    def _run(self) -> Run:
        ask, server = self.ask, self.server
        return Run(
            modality="text",
            target=server.model.rstrip("/").rsplit("/", 1)[-1] if server.model.startswith("/") else server.model[:1024],
            method=f"served_{server.kind.replace('.', '_')}",
            title=f"Served by {server.title}",
            exactness="exact",
            parameters={},
            sampling=Sampling(ask.temperature, ask.top_k, ask.top_p, ask.seed),
            device="server",
            dtype="",
            tier="served",
            prompt=ask.prompt,
            prompt_pieces=(ask.prompt[:4096],),
            max_new_tokens=ask.max_new_tokens,
            chat_template=not ask.raw,
            libraries={"specviz": specviz.__version__},
            machine=server.url,
            recorded_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            warnings=(TIMES, *((ARRIVALS,) if server.kind in ("openai", "sglang") else ())),
        )

    def _end(self, output: Sequence[int], steps: Sequence[Step], texts: ChainSteps) -> End:
        reason = self._reason or "cancelled"
        told = told_counts(self._told)
        return End(
            reason=reason,
            output_ids=tuple(output),
            text=texts.text_of(list(output)),
            prefill_ns=0,
            metrics=summarise(list(steps), reason, 0),
            message=" ".join(part for part in (self._message, told) if part),
        )

    def _whole(self, seen: Trace) -> Trace:
        """The trace by the server's counts a draft, where it gave them; else what was seen."""
        counts = ((self._told.get("metrics") or {}).get("speculative_decoding") or {}) if self._reason != "error" else {}
        accepted, drafted = counts.get("per_step_accepted"), counts.get("per_step_drafted")
        if accepted is None or drafted is None:
            return seen
        tokens = [token for arrival in self._arrivals for token in arrival.tokens]
        try:
            rounds, warning = rounds_by_counts(tokens, accepted, drafted)
        except BadInput as problem:
            run = seen.run
            return Trace(_warned(run, f"The server's counts were left aside. {problem}"), seen.steps, seen.end)
        gaps = _gaps(self._arrivals, rounds)
        return traced(rounds, gaps, self._texts, self._prompt(), seen, warning)


def traced(
    rounds: Sequence[Arrival], gaps: Sequence[int], texts: ToldTexts, prompt: Sequence[int], seen: Trace, warning: str
) -> Trace:
    """A trace of these rounds, with run and end of the one that was seen."""
    assert seen.end is not None
    steps = ChainSteps(texts, prompt)
    cut = seen.end.reason if seen.end.reason in ("eos", "budget", "context") else None
    for place, (arrival, gap) in enumerate(zip(rounds, gaps, strict=True)):
        last = place == len(rounds) - 1
        round_ = Arrival(arrival.tokens, gap, arrival.drafted)
        steps.add(chain_round(round_, cut if last else None, greedy=not seen.run.sampling.temperature))
    metrics = summarise(steps.steps, seen.end.reason, 0)
    end = End(seen.end.reason, tuple(steps.output), seen.end.text, 0, metrics, seen.end.message)
    return Trace(_warned(seen.run, warning) if warning else seen.run, tuple(steps.steps), end)


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


def told_counts(told: Mapping[str, Any]) -> str:
    """A server's own summary of speculation in one sentence, or nothing."""
    counts = (told.get("metrics") or {}).get("speculative_decoding") or {}
    if counts:
        return (
            f"The server counts {counts.get('num_accepted_draft_tokens')} of {counts.get('num_draft_tokens')} drafted tokens "
            f"accepted in {counts.get('num_spec_steps')} rounds with a draft."
        )
    timings = told.get("timings") or {}
    if timings.get("draft_n"):
        return f"The server counts {timings.get('draft_n_accepted')} of {timings['draft_n']} drafted tokens accepted."
    spec = told.get("sglext_spec") or (told.get("sglext") or {}).get("spec") or {}
    if spec:
        return f"The server says: {json.dumps(spec)[:300]}"
    return ""


class _BrokenOff(SpecvizError):
    """The answer ended otherwise than it should."""


def _why(problem: Exception) -> str:
    words = str(problem).strip() or type(problem).__name__
    return words if words.endswith((".", "!")) else words + "."


def _json(client: httpx.Client, url: str) -> dict[str, Any]:
    try:
        response = client.get(url)
    except httpx.HTTPError as problem:
        raise BadInput(f"Nothing answers at {url}: {_why(problem)} Is the server running, and is this its address?") from None
    if response.status_code != 200:
        raise BadInput(f"{url} answers with status {response.status_code}; is this a server of OpenAI's kind?")
    try:
        found = response.json()
    except ValueError:
        raise BadInput(f"{url} answers with something else than JSON; is this a server of OpenAI's kind?") from None
    return found if isinstance(found, dict) else {}


def _refusal(answer: httpx.Response) -> str:
    body = answer.read()[:2000].decode("utf-8", "replace")
    try:
        told = json.loads(body)
        words = told.get("message") or (told.get("error") or {}).get("message") or body
    except (ValueError, AttributeError):
        words = body
    return f"status {answer.status_code}, {str(words)[:300]}"


def _events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """Server-sent events as JSON objects, until ``[DONE]``. Raises _BrokenOff on what is none or is too much."""
    received, done = 0, False
    for line in answer.iter_lines():
        received += len(line)
        if received > MOST_BYTES or len(line) > MOST_LINE:
            raise _BrokenOff("it sent more than an answer holds.")
        if not line.startswith("data:"):
            continue
        text = line[5:].strip()
        if text == "[DONE]":
            done = True
            break
        try:
            event = json.loads(text)
        except ValueError:
            raise _BrokenOff("it sent something else than JSON.") from None
        if isinstance(event, dict):
            yield event
    if not done:
        raise _BrokenOff("the connection closed before the end.")
