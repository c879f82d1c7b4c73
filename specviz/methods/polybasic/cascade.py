"""Polybasic's cascade: an intermediate model verifies the drafter until μ tokens are buffered; the target verifies the
buffer.

A lossless form of Wang et al. (arXiv 2510.26527). The intermediate model decodes with the drafter below it, by an exact
acceptance rule: its output has the intermediate model's distribution, whatever the drafter proposes. It continues until the
buffer is full, a stop rule that depends only on past tokens. So each buffered token was sampled from the intermediate model's
distribution after the tokens before it. That distribution is the q of the target's acceptance rule; the drafter's would be wrong.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from specviz.acceptance.exact import Match
from specviz.engine.clock import Stopwatch, Untimed
from specviz.engine.interfaces import (
    Acceptance,
    Context,
    Draft,
    Drafter,
    Proposal,
    Round,
    Session,
    TargetPass,
    TreeBuilder,
)
from specviz.engine.sampling import EXTRA, Noise
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree
from specviz.methods.polybasic.intermediate import IntermediateModel, SmallSession
from specviz.trace.notes.models import CascadeCosts, CascadeNote, CascadePass, CascadeTotals

LONGEST = 64
"""Maximum number of tokens in a buffer."""


class Provisional(Drafter, Protocol):
    """Drafter that can roll back to an earlier state."""

    def bookmark(self) -> Any:
        """Return the drafter's state between two rounds."""

    def back(self, bookmark: Any) -> None:
        """Restore that state."""


@dataclass
class _Buffer:
    """Tokens buffered in a round, with the intermediate model's logits for each if ``keeps``."""

    keeps: bool
    mark: Any = None
    """The drafter's state before the first of these tokens."""
    tokens: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    passes: list[CascadePass] = field(default_factory=list)


Below = TypeVar("Below", bound=Provisional)


class Cascade(Generic[Below]):
    """Controller of a cascade: ``builder`` drafts with ``drafter`` for ``intermediate``, which verifies by the rule ``judge``.

    A round buffers at least ``gathered`` tokens, or fewer if one of ``ends`` is among them. ``facts``: costs and acceptance of
    the levels, for display. ``taps``: hidden states that the drafter reads.
    """

    def __init__(
        self,
        intermediate: IntermediateModel,
        drafter: Below,
        builder: TreeBuilder[Below],
        judge: Acceptance,
        gathered: int,
        taps: Sequence[int] = (),
        facts: CascadeCosts | None = None,
        ends: frozenset[int] = frozenset(),
    ) -> None:
        self.intermediate = intermediate
        self.gathered = gathered
        self._drafter, self._builder, self._judge = drafter, builder, judge
        self._taps, self._facts, self._ends = tuple(taps), facts, ends
        self._session: Session | None = None
        self._inner: Context
        self._verified: tuple[TargetPass, int, Acceptance] | None

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        """Prefill the intermediate model and the drafter with the prompt."""
        self._drafter.begin(context, prefill)
        self._totals: Any = Counter(dict[str, Any](kept=0, passes=0, calls=0, drafting=0.0, verifying=0.0))
        if self._fits(context):
            self._session = self.intermediate.open(
                min(self.intermediate.context_length, len(context.ids) + context.max_depth), self._taps
            )
            if len(context.ids) > 1:
                self._session.prefill(context.ids[:-1])

    def _fits(self, context: Context) -> bool:
        """Whether the text and a buffer after it fit the intermediate model's context."""
        return len(context.ids) + min(context.max_depth, 2 * LONGEST) <= self.intermediate.context_length

    def close(self) -> None:
        session, self._session, self._verified = self._session, None, None
        self._drafter.close()
        if session is not None:
            session.close()

    def draft(self, context: Context) -> Draft:
        """Return a chain of the intermediate model's tokens, with its distribution at each node."""
        buffer = _Buffer(context.record_notes or not context.warp.greedy)
        inner_noise = Noise(int(context.noise.uniform(EXTRA, context.round) * 2**52))
        most = min(LONGEST, context.max_depth - 1) if self._session is not None and self._fits(context) else 0
        while len(buffer.tokens) < min(self.gathered, most) and not self._ends.intersection(buffer.tokens):
            inner = replace(
                context,
                ids=[*context.ids, *buffer.tokens],
                round=len(buffer.passes),
                noise=inner_noise,
                max_depth=context.max_depth - len(buffer.tokens),
                record_notes=False,
            )
            self._filter(inner, buffer)
        if buffer.passes:
            self._drafter.back(buffer.mark)
        return self._block(context, buffer, most)

    def _filter(self, inner: Context, buffer: _Buffer) -> None:
        """Run one round of the intermediate model with the drafter below it; append its tokens to the buffer."""
        clock = Stopwatch(inner.device, Untimed(inner.device))
        # The drafter's tree stays on the host, because the tree of the pass is built from its tokens.
        self._inner, self._verified = replace(inner, device=torch.device("cpu"), mark=clock.mark), None
        clock.start()
        draft = self._builder.build(self._drafter, self._inner)
        if not buffer.passes:  # the committed text has now been read
            buffer.mark = self._drafter.bookmark()
        if not self._verified:
            clock.mark("draft")
            self._verified = *self._score(inner, draft.tree), self._judge
        scored, lead, judge = self._verified
        verdict = judge.judge(draft, scored, inner)
        nodes = 0, *verdict.path
        assert self._session is not None and verdict.bonus is not None
        tokens = [*(draft.tree.host_tokens[node] for node in verdict.path), verdict.bonus]
        self._session.keep([*range(lead), *(lead + node for node in nodes)])
        clock.stop()
        times, ended = clock.read(), time.perf_counter_ns()
        self._drafter.observe(Round(inner, draft, scored, verdict, tokens))
        drafting, verifying = (times.draft + time.perf_counter_ns() - ended) / 1e6, times.host / 1e6
        buffer.tokens += tokens
        if buffer.keeps:  # copied, as the next pass may overwrite them
            buffer.rows.append(scored.logits.index_select(0, to_device(nodes, inner.device)))
        self._totals.update(passes=1, calls=draft.calls, drafting=drafting, verifying=verifying)
        buffer.passes.append(CascadePass(len(draft.tree) - 1, len(verdict.path), draft.calls, tokens, drafting, verifying))

    def read(self, found: list[Tensor], tokens: list[Tensor]) -> Any:
        """Copy the drafter's chain to the host, after the small draft model's pass over it and together with its tokens.

        A round of the intermediate model then waits for the device once. See :class:`Dynamic` for the arguments.
        """
        inner, session = self._inner, self._session
        assert isinstance(session, SmallSession)
        inner.mark("draft")
        ids = inner.ids[session.length :]
        lead, first = len(ids) - 1, len(inner.ids)
        logits = session.extend(ids, tokens).logits[lead:]
        choices = inner.warp.choose(logits, range(first, first + len(logits)), inner.noise)
        host = torch.cat([*found, choices.expand(2, 1, -1).mT], 1).tolist()
        self._verified = TargetPass(logits), lead, Match([int(token) for (token,) in host[1][len(found) :]])
        return host

    def _score(self, inner: Context, tree: DraftTree) -> tuple[TargetPass, int]:
        """Run the intermediate model in one pass over the committed tokens missing from its cache and over the tree; return the
        tree's part of the pass, and the number of missing tokens."""
        session = self._session
        assert session is not None
        lead = inner.ids[session.length : -1]
        parents = [*range(-1, len(lead)), *(len(lead) + parent for parent in tree.shape.parents[1:])]
        target_pass = session.score(DraftTree.of([*lead, *tree.host_tokens], parents, inner.device))
        if not lead:
            return target_pass, 0
        hidden = {tap: states[len(lead) :] for tap, states in target_pass.hidden.items()}
        return TargetPass(target_pass.logits[len(lead) :], hidden), len(lead)

    def _block(self, context: Context, buffer: _Buffer, most: int) -> Draft:
        tokens = buffer.tokens[:most]
        tree = DraftTree.of([context.ids[-1], *tokens], range(-1, len(tokens)), context.device)
        proposals: dict[int, Proposal] = {}
        confidence: list[float | None] = [None] * len(tree)
        if tokens and buffer.keeps:
            rows = torch.cat(buffer.rows)[: len(tokens)]
            if not context.warp.greedy:
                proposals = {node: Proposal(row) for node, row in enumerate(context.warp.probabilities(rows).unbind())}
            if context.record_notes:
                with context.untimed:
                    found = context.warp.log_probabilities(rows).gather(1, tree.tokens[1:, None]).exp()
                    confidence[1:] = found.flatten().tolist()
        self._totals.update(rounds=1, buffered=len(tokens))
        facts = (self.intermediate.name, self.gathered, len(tokens), buffer.passes, CascadeTotals(**self._totals), self._facts)
        notes = context.notes(lambda: [CascadeNote(*facts).to_note()])
        # All forwards that draft for the target count: the drafter's, and the intermediate model's passes.
        return Draft(tree, proposals, confidence, sum(1 + filter_pass.calls for filter_pass in buffer.passes), notes=notes)

    def observe(self, finished: Round) -> None:
        """Update the drafter with the target's hidden states; drop rejected tokens from the intermediate model's cache."""
        self._drafter.observe(finished)
        accepted = len(finished.verdict.path)
        self._totals["kept"] += accepted
        if self._session is not None:
            self._session.rewind(min(self._session.length, len(finished.context.ids) + accepted))
