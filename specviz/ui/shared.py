"""State shared by every tab of one running app."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specviz.trace.store import TraceStore
from specviz.ui.hardware import Hardware, Look, looked
from specviz.ui.session import PageSessions
from specviz.ui.settings import Settings, most_seconds
from specviz.ui.shown import Archive
from specviz.ui.stream.engine import Stream, choose
from specviz.ui.stream.live import Live
from specviz.ui.stream.opening import Opening
from specviz.ui.stream.pool import Pool
from specviz.ui.stream.presence import Presence
from specviz.ui.stream.run_queue import RunQueue
from specviz.ui.stream.served import with_servers
from specviz.ui.stream.sse import Tails
from specviz.ui.widgets.gallery import Gallery


@dataclass
class AppState:
    """Made once per app. What belongs to one visitor is inside ``pages`` and under keys of ``archive.store``."""

    settings: Settings
    archive: Archive
    live: Live
    pages: PageSessions
    presence: Presence
    opening: Opening
    hardware: Hardware

    def expose(self) -> None:
        """Go on with the settings for strangers: a proxy brings visitors to an app that took itself for private."""
        if self.settings.exposed is not None:
            self.settings = self.settings.exposed
            self.live.seconds = most_seconds(self.settings)


def make(settings: Settings, stream: Stream | None = None, look: Look = looked) -> AppState:
    """Everything the tabs need. ``stream`` replaces the engine, which tests without a model do, ``look`` the look at hardware."""
    store = TraceStore()
    engine = with_servers(stream or choose(settings.zero_gpu), settings.servers)
    live = Live(engine, RunQueue(settings.max_waiting), Tails(store), most_seconds(settings), settings.max_preparing)
    pool, presence = Pool(), Presence(settings.proxied)
    archive, opening = Archive(Gallery(settings.traces), store, pool), Opening(store, pool)
    pages = PageSessions(each=math.ceil((settings.max_waiting + 1) * 2 / 3))
    return AppState(settings, archive, live, pages, presence, opening, Hardware(settings, look))
