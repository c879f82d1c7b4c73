"""Opening of a run in the tab of its modality, from a link or from the Traces tab."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.errors import SpecvizError
from specviz.ui import browser_state
from specviz.ui.app_state import AppState
from specviz.ui.archive import MINE
from specviz.ui.browser_state import Kept
from specviz.ui.tabs.events import Updates
from specviz.ui.tabs.run_tab import Runs, RunTab
from specviz.ui.widgets import panels

SHARED = "A run that a visitor has shared, kept here until {}. You see a copy; runs that you start are your own."


@dataclass(frozen=True)
class RunTabs:
    """The tabs that show a run, by id. The page opens with the first one."""

    shared: AppState
    tabs: gr.Tabs
    by_id: dict[str, RunTab]

    @property
    def runs(self) -> list[Any]:
        """Lists of the session's runs, one per tab."""
        return [tab.runs for tab in self.by_id.values()]

    @property
    def outputs(self) -> list[Any]:
        """Components that :meth:`show` may update."""
        return [self.tabs, *(component for tab in self.by_id.values() for component in tab.outputs)]

    def show(self, name: str, request: gr.Request, *runs: Runs) -> Updates:
        """Return the updates that open a run in the tab of its modality. ``runs``: the session's runs, one list per tab."""
        shown = list(zip(self.by_id.items(), runs, strict=True))
        with suppress(SpecvizError):  # tab.show reports the error
            modality = self.shared.archive.run(name).modality
            shown.sort(key=lambda one: one[0][1].modality != modality)
        (place, tab), session_runs = shown[0]
        updates = tab.show(name, list(session_runs), request.session_hash, joins_session=name.startswith(MINE))
        if until := name.startswith(MINE) and self.shared.archive.shared.until(name.removeprefix(MINE)):
            updates |= tab.say(SHARED.format(until), note=True)
        return updates | {self.tabs: gr.Tabs(selected=place)}

    async def play(self, name: str, request: gr.Request, *runs: Runs) -> Updates:
        """Like :meth:`show`, outside Gradio's threads."""
        return await self.shared.read([name], lambda: self.show(name, request, *runs), request)

    async def arrive(self, kept_text: str, request: gr.Request, *runs: Runs) -> Updates:
        """Return the updates of a newly opened page: the run that the URL names, and the state kept by the browser."""
        tabs, default_name = list(self.by_id.values()), self.shared.archive.gallery.default_name
        updates: Updates = {tabs[0].run_name: default_name}
        if (name := request.query_params.get("trace") or default_name) != default_name:
            try:
                if name.startswith(MINE):
                    await self.shared.archive.recall(name, self.shared.presence.address_of(request))
                updates = await self.play(name, request, *runs)
            except SpecvizError as error:
                for tab in tabs:  # the URL may name a run of any tab
                    updates |= tab.say(error)
            if request.query_params.get("tab"):  # page.js opens the tab
                updates.pop(self.tabs, None)
        parts = await asyncio.to_thread(browser_state.parts, kept_text)
        for tab, session_runs in zip(tabs, runs, strict=True):
            if part := parts.get(tab.prefix):
                updates |= await self._kept_run(tab, part, list(session_runs), request) | tab.restore(part)
        return updates

    async def _kept_run(self, tab: RunTab, part: Kept, session_runs: Runs, request: gr.Request) -> Updates:
        """Return the updates that restore the visitor's run. If the run is damaged, the banner reports the error."""
        if not part.lines:
            return {}
        owner = self.shared.presence.address_of(request)
        try:
            name = await self.shared.archive.take(part.run, part.lines, owner)
            return await self.shared.read([name], lambda: tab.show(name, session_runs, request.session_hash, True), request)
        except SpecvizError as error:
            return {tab.banner: panels.banner(f"The run that this page had stored could not be restored. {error}")}
