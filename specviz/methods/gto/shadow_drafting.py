"""Controller that also scores a second drafter's tree for comparison (untimed, never emitted).

The second tree is scored in its own session, which takes about as long as another round; that time is not charged to the step.
"""

from __future__ import annotations

from specviz.engine.interfaces import Context, Controller, Draft, Round, Session, Target, TargetPass


class ShadowDrafting:
    """``main`` drafts the verified tree; ``latest`` is the draft of ``other`` from the same root, and its target pass."""

    def __init__(self, main: Controller, other: Controller, target: Target) -> None:
        self._main = main
        self._other = other
        self._target = target
        self._session: Session | None = None
        self.latest: tuple[Draft, TargetPass] | None = None

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._main.begin(context, prefill)
        if context.record_notes:
            with context.untimed:
                self._other.begin(context, prefill)
                capacity = min(self._target.context_length, len(context.ids) + context.max_depth)
                self._session = self._target.open(capacity)
                if len(context.ids) > 1:
                    self._session.prefill(context.ids[:-1])

    def draft(self, context: Context) -> Draft:
        draft = self._main.draft(context)
        if self._session is not None:
            with context.untimed:
                self.latest = self._second(self._session, context)
        return draft

    def _second(self, session: Session, context: Context) -> tuple[Draft, TargetPass]:
        """Return the other drafter's draft and its target pass, which follows all committed tokens but the root."""
        if session.length < context.position:
            session.prefill(context.ids[session.length : context.position])
        draft = self._other.draft(context)
        scored = session.score(draft.tree)
        session.rewind(session.length)
        return draft, scored

    def observe(self, finished: Round) -> None:
        self._main.observe(finished)
        if self._session is not None:
            with finished.context.untimed:
                self._other.observe(finished)

    def close(self) -> None:
        session, self._session = self._session, None
        try:
            self._main.close()
            self._other.close()
        finally:
            if session is not None:
                session.close()
