"""Class mode: a lesson on the projector, and phones that answer the lesson's questions.

A phone opens one small page, ``/c/CODE``, and polls for the current question. The teacher's page shows the histogram, sets
the pace with the room's secret key, and downloads the answers. A room is a few kilobytes of memory: it opens no Gradio session,
computes nothing, and is forgotten when the class ends. A name is stored only if typed.
"""

from __future__ import annotations

import asyncio
import csv
import io
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
import segno
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from specviz.errors import BadInput
from specviz.interop.client import address
from specviz.ui import theme
from specviz.ui.lessons import Ask
from specviz.ui.settings import Settings, is_loopback

PATH, KEY = "c", "x-class-key"
"""First part of the paths, short because people type it, and the header of the teacher's key."""
LETTERS = "BCDFGHJKMNPQRSTVWXZ23456789"
"""Characters of a room's code: no vowels, so that no words arise, and none that look alike."""
MOST_ROOMS, MOST_EACH, MOST_PHONES, MOST_QUESTIONS = 40, 5, 200, 100
"""Maximum number of rooms, of rooms opened from one address, and of phones and questions in a room."""
LIFE, IDLE, AWAY = 6 * 3600, 3600, 20
"""Seconds until a room closes after its opening, and after its teacher's last request; and until a silent phone is gone."""
MOST_BODY, BODY_SECONDS = 2048, 10
WINDOW = 10
"""Length in seconds of a window, in which the requests of an address are counted."""
LIMITS = {"GET": 1500, "POST": 300, "miss": 30}
"""Maximum number of requests in a window: three classes behind one router, and few guesses at a code."""
MOST_COUNTED = 10_000
FILES = {"board.js": "text/javascript", "board.css": "text/css", "phone.js": "text/javascript", "phone.css": "text/css"}
HEADERS = {
    "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; img-src data:; script-src 'self'; style-src 'self'; connect-src 'self'",
}  # fmt: skip
PRIVATE = (
    "Phones cannot open this app: it answers only the machine that it runs on. Start it with GRADIO_SERVER_NAME=0.0.0.0, open it "
    "by this machine's address in the network, such as http://192.168.1.20:7860, and start the class there. A Space needs no "
    "setting."
)
LOCAL = "Phones cannot open localhost. Open this page at the address that others use, and start the class there."
GONE = "There is no class with this code. It may be over: look at the projector."

Id = Annotated[str, msgspec.Meta(pattern=r"^[\w-]{16,40}$")]
Asking = Callable[[str, int], tuple[str, Ask | None]]
"""Function from a lesson's name and page number to the lesson's title and the page's question."""
T = TypeVar("T")


class Show(msgspec.Struct):
    """Page on the projector, and what phones may do with its question."""

    lesson: str
    page: int
    state: Literal["ready", "open", "closed", "shown"]


class Answer(msgspec.Struct):
    """Answer of a phone to question ``number``."""

    id: Id
    number: int
    choice: int
    name: Annotated[str, msgspec.Meta(max_length=40)] = ""


class Question(msgspec.Struct):
    """Question that was shown. ``answers``: choice and seconds after the opening, by phone."""

    number: int
    ask: Ask
    opened: float = 0.0
    answers: dict[str, tuple[int, float]] = {}


class Room(msgspec.Struct):
    """A class. ``version`` changes whenever the phones' view does; ``seen``: time of the last poll by phone."""

    owner: str
    key: str
    began: float
    used: float
    title: str = ""
    version: int = 0
    state: str = "wait"
    current: Question | None = None
    questions: dict[tuple[str, int], Question] = {}
    seen: dict[str, float] = {}
    names: dict[str, str] = {}

    def show(self, shown: Show, title: str, ask: Ask | None) -> None:
        """Show a page. A question that was shown before keeps its answers."""
        self.title, self.version, self.state, self.current = title, self.version + 1, "wait", None
        place, number = (shown.lesson, shown.page), len(self.questions) + 1
        if ask and (place in self.questions or number <= MOST_QUESTIONS):
            self.state = shown.state
            self.current = self.questions.setdefault(place, Question(number, ask))
            if self.state == "open":
                self.current.opened = self.current.opened or time.monotonic()

    def join(self, phone: str) -> None:
        """Register a phone. Raises HTTPException if the room is full."""
        if phone not in self.seen and len(self.seen) >= MOST_PHONES:
            raise HTTPException(409, "This class is full.")
        self.seen[phone] = time.monotonic()

    def answer(self, given: Answer) -> None:
        """Record an answer; a later one replaces it while the question is open."""
        self.join(given.id)
        if not (question := self.current) or self.state != "open" or given.number != question.number:
            raise HTTPException(409, "The question is closed.")
        if not 0 <= given.choice < len(question.ask.choices):
            raise HTTPException(400, "There is no such choice.")
        question.answers[given.id] = given.choice, time.monotonic() - question.opened
        self.names[given.id] = " ".join(given.name.split()) or self.names.get(given.id, "")

    def view(self, teacher: bool = False) -> dict[str, Any]:
        """Return the phones' view: the question once opened, later the answer with the counts. A teacher sees all."""
        state: dict[str, Any] = {"title": self.title, "state": self.state}
        if teacher:
            state["phones"] = sum(time.monotonic() - seen < AWAY for seen in self.seen.values())
        if (question := self.current) and (teacher or self.state != "ready"):
            state |= {"number": question.number, "question": question.ask.question, "choices": question.ask.choices}
            if teacher or self.state == "shown":
                counts = Counter(choice for choice, _ in question.answers.values())
                state["counts"] = [counts[choice] for choice in range(len(question.ask.choices))]
            if self.state == "shown":
                state["answer"] = question.ask.answer
        return state

    def table(self) -> str:
        """Return all answers as CSV. A text that a spreadsheet would take for a formula begins with an apostrophe."""
        rows, phones = csv.writer(written := io.StringIO()), list(self.seen)
        rows.writerow(("lesson", "page", "question", "answer", "right", "phone", "name", "seconds"))
        for (lesson, page), question in self.questions.items():
            ask = question.ask
            for phone, (choice, seconds) in question.answers.items():
                row = lesson, page + 1, ask.question, ask.choices[choice], int(choice == ask.answer)
                cells = (*row, phones.index(phone) + 1, self.names[phone], f"{seconds:.1f}")
                rows.writerow(re.sub(r"^(?=\s*[=+@-])", "'", str(cell)) for cell in cells)
        return f"\ufeff{written.getvalue()}"


@dataclass(eq=False)
class Classroom:
    """Middleware that answers the requests of class mode before Gradio."""

    app: ASGIApp
    settings: Callable[[], Settings]
    address: Callable[[Scope], str]
    ask: Asking
    rooms: dict[str, Room] = field(default_factory=dict)
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _window: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = scope.get("path", "").removeprefix(scope.get("root_path", "")).strip("/").split("/")
        if scope["type"] != "http" or parts[0] != PATH or not 1 < len(parts) < 4:
            return await self.app(scope, receive, send)
        try:
            response = await self._response(Request(scope, receive), *parts[1:])
        except (HTTPException, BadInput, msgspec.MsgspecError, TimeoutError, ClientDisconnect) as error:
            response = PlainTextResponse(getattr(error, "detail", str(error)), getattr(error, "status_code", 400))
        await response(scope, receive, send)

    async def _response(self, request: Request, code: str, action: str = "") -> Response:
        owner = self.address(request.scope)
        if not self._within(owner, "POST" if request.method == "POST" else "GET"):
            raise HTTPException(429, "Too many requests from your address. Wait ten seconds.")
        if not action and request.method != "POST":
            name = code if code in FILES else "phone.html"
            return Response(theme.source(f"classroom/{name}"), 200, HEADERS, FILES.get(code, "text/html"))
        if not action:
            return self._begun(request.query_params.get("base", ""), owner)
        phone = request.query_params.get("id", "")
        room = self._room(code.upper(), owner, phone)
        if action == "now":
            room.join(msgspec.convert(phone, Id))
            headers = {"ETag": f'"{room.version}"', "Cache-Control": "no-store"}
            if request.headers.get("if-none-match") == headers["ETag"]:
                return Response(status_code=304, headers=headers)
            return JSONResponse(room.view(), headers=headers)
        if action == "answer":
            room.answer(await _body(request, Answer))
            return Response(status_code=204)
        if not secrets.compare_digest(room.key.encode(), request.headers.get(KEY, "").encode()):
            raise HTTPException(403, "This is for the teacher of the class.")
        room.used = time.monotonic()
        if action == "answers":
            return Response(room.table(), media_type="text/csv")
        if action == "show":
            shown = await _body(request, Show)
            room.show(shown, *await asyncio.to_thread(self.ask, shown.lesson, shown.page))
        elif action == "end":
            del self.rooms[code.upper()]
        return JSONResponse(room.view(teacher=True))

    def _begun(self, base: str, owner: str) -> Response:
        """Open a room. ``base``: address of the app in the teacher's browser.

        Raises BadInput if phones could not reach that address, and HTTPException if there are too many rooms.
        """
        base, private = address(base), self.settings().private
        if private or is_loopback(urlsplit(base).hostname or ""):
            raise BadInput(PRIVATE if private else LOCAL)
        if len(self.rooms) >= MOST_ROOMS or sum(room.owner == owner for room in self.rooms.values()) >= MOST_EACH:
            raise HTTPException(409, "The maximum number of classes is already running. End one, or try again later.")
        code, now = "".join(secrets.choice(LETTERS) for _ in range(5)), time.monotonic()
        room = self.rooms[code] = Room(owner, secrets.token_urlsafe(24), now, now)
        link = f"{base}/{PATH}/{code}"
        rows = ["".join(map(str, row)) for row in segno.make(link, error="m", micro=False).matrix]
        return JSONResponse({"code": code, "key": room.key, "link": link, "qr": rows})

    def _room(self, code: str, owner: str, phone: str) -> Room:
        """Return a room. Raises HTTPException if it does not exist or, for a phone not yet in it, after many wrong codes."""
        room = self.rooms.get(code)
        if room and (phone in room.seen or self._counts[owner, "miss"] <= LIMITS["miss"]):
            return room
        raise HTTPException(404 if self._within(owner, "miss") else 429, GONE)

    def _within(self, owner: str, what: str) -> bool:
        """Count a request, and return whether its address is within the limit. Each new window drops expired rooms."""
        now = time.monotonic()
        if (window := int(now / WINDOW)) != self._window:
            self._window, self._counts = window, Counter()
            self.rooms = {name: one for name, one in self.rooms.items() if now - one.began < LIFE and now - one.used < IDLE}
        self._counts[owner, what] += 1
        return len(self._counts) < MOST_COUNTED and self._counts[owner, what] <= LIMITS[what]


async def _body(request: Request, kind: type[T]) -> T:
    """Return the body of a request. Raises HTTPException if it is too long, and TimeoutError if it is too slow."""
    body = b""
    async with asyncio.timeout(BODY_SECONDS):
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BODY:
                raise HTTPException(413, f"The request exceeds the maximum of {MOST_BODY:,} bytes.")
    return msgspec.json.decode(body, type=kind)
