"""Class mode without a browser: who may do what in a room, what phones are told and when, and what bounds it all."""

import csv
import io

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from specviz.errors import BadInput
from specviz.ui import theme
from specviz.ui.access import Presence
from specviz.ui.app_state import make
from specviz.ui.classroom import server
from specviz.ui.classroom.server import KEY, Classroom
from specviz.ui.lessons import Ask
from specviz.ui.settings import Settings
from specviz.ui.tabs import learn_tab
from tests.support import qr
from tests.support.fakes.ui import FakeEngine, gallery

BASE = "https://someone-specviz.hf.space/"
ASK = Ask("", "How many?", ("=1+1", "one", "two"), 1)
PHONE = "phone-0000000000"


def ask(lesson, number):
    if lesson != "lesson":
        raise BadInput("There is no such page.")
    return "A lesson", ASK if number else None


@pytest.fixture
def clock(monkeypatch):
    """The time that rooms go by, in a list of one."""
    now = [1000.0]
    monkeypatch.setattr(server.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def classroom(clock):
    return Classroom(PlainTextResponse("the app"), lambda: Settings(private=False), Presence(proxied=True).address_in, ask)


@pytest.fixture
def client(classroom):
    return TestClient(classroom)


class Class:
    """A class that was started, from the teacher's side and from a phone's."""

    def __init__(self, client, **headers):
        self.client = client
        self.room = client.post("/c/new", params={"base": BASE}, headers=headers).json()
        self.key = {KEY: self.room["key"]}

    def path(self, action):
        return f"/c/{self.room['code']}/{action}"

    def show(self, state, number=1):
        return self.client.post(
            self.path("show"), json={"lesson": "lesson", "page": number, "state": state}, headers=self.key
        ).json()

    def answer(self, choice, phone=PHONE, number=1, **more):
        given = {"id": phone, "number": number, "choice": choice, **more}
        return self.client.post(self.path("answer"), json=given).status_code

    def now(self, phone=PHONE, tag=""):
        return self.client.get(f"{self.path('now')}?id={phone}", headers={"If-None-Match": tag})

    def table(self):
        return list(
            csv.DictReader(io.StringIO(self.client.get(self.path("answers"), headers=self.key).text.removeprefix("\ufeff")))
        )


@pytest.fixture
def lesson(client):
    return Class(client)


def test_the_code_to_scan_is_the_link_and_the_link_is_short(lesson):
    room = lesson.room
    assert room["link"] == f"{BASE}c/{room['code']}" and len(room["code"]) == 5
    assert qr.text(room["qr"]) == room["link"]


def test_a_phone_sees_the_question_when_it_is_opened_and_the_answer_when_it_is_shown(lesson):
    assert lesson.now().json() == {"title": "", "state": "wait"}
    lesson.show("ready")
    assert lesson.now().json() == {"title": "A lesson", "state": "ready"}
    assert lesson.answer(1) == 409, "it is not open yet"
    lesson.show("open")
    told = {"title": "A lesson", "number": 1, "question": "How many?", "choices": list(ASK.choices)}
    assert lesson.now().json() == told | {"state": "open"}
    assert lesson.answer(1) == 204
    assert lesson.show("closed")["counts"] == [0, 1, 0]
    assert lesson.now().json() == told | {"state": "closed"}
    assert lesson.answer(2) == 409, "it is closed"
    lesson.show("shown")
    assert lesson.now().json() == told | {"state": "shown", "answer": 1, "counts": [0, 1, 0]}
    lesson.show("ready", 0)
    assert lesson.now().json() == {"title": "A lesson", "state": "wait"}, "a page without a question"


def test_the_last_answer_of_a_phone_counts_and_the_class_is_counted(lesson, clock):
    lesson.show("open")
    for choice in (0, 2, 2):
        assert lesson.answer(choice) == 204
    assert lesson.answer(0, "phone-1111111111") == 204
    lesson.now("phone-2222222222")
    seen = lesson.client.get(lesson.path("board"), headers=lesson.key).json()
    assert (seen["counts"], seen["phones"]) == ([1, 0, 1], 3)
    clock[0] += server.AWAY + 1
    lesson.now("phone-2222222222")
    assert lesson.client.get(lesson.path("board"), headers=lesson.key).json()["phones"] == 1


def test_answers_come_as_a_table_that_no_spreadsheet_computes(lesson, clock):
    lesson.show("open")
    clock[0] += 3
    lesson.answer(0, name='  @SUM("x")  ')
    lesson.answer(1, "phone-1111111111")
    lesson.show("open", 2)
    lesson.answer(1, number=2)
    rows = lesson.table()
    assert [(row["page"], row["answer"], row["right"], row["phone"], row["seconds"]) for row in rows] == [
        ("2", "'=1+1", "0", "1", "3.0"), ("2", "one", "1", "2", "3.0"), ("3", "one", "1", "1", "0.0"),
    ]  # fmt: skip
    assert [row["name"] for row in rows] == ['\'@SUM("x")', "", '\'@SUM("x")'], "a name stays, and none is there unless typed"
    assert PHONE not in str(rows)


def test_a_poll_without_news_gets_no_body(lesson):
    lesson.show("open")
    tag = lesson.now().headers["ETag"]
    again = lesson.now(tag=tag)
    assert (again.status_code, again.content) == (304, b"")
    lesson.answer(1)
    assert lesson.now(tag=tag).status_code == 304, "phones are not told of others' answers"
    lesson.show("closed")
    assert lesson.now(tag=tag).status_code == 200


@pytest.mark.parametrize(("method", "action"), [("GET", "board"), ("GET", "answers"), ("POST", "show"), ("POST", "end")])
@pytest.mark.parametrize("key", ["", "wrong", "é"])
def test_only_the_teacher_leads_the_class(lesson, method, action, key):
    answer = lesson.client.request(method, lesson.path(action), headers=[(KEY.encode(), key.encode())])
    assert answer.status_code == 403
    assert lesson.now().status_code == 200


def test_an_ended_class_is_forgotten(lesson, classroom):
    assert lesson.client.post(lesson.path("end"), headers=lesson.key).status_code == 200
    answer = lesson.now()
    assert (answer.status_code, answer.text) == (404, server.GONE)
    assert not classroom.rooms


@pytest.mark.parametrize(("seconds", "polls"), [(server.IDLE, False), (server.LIFE, True)])
def test_a_class_ends_when_its_teacher_has_left_and_after_some_hours(lesson, clock, seconds, polls):
    for _ in range(int(seconds // 600) - 1):
        clock[0] += 600
        if polls:
            assert lesson.client.get(lesson.path("board"), headers=lesson.key).status_code == 200
        assert lesson.now().status_code == 200
    clock[0] += 601
    assert lesson.now().status_code == 404


def test_a_room_is_bounded(lesson, monkeypatch):
    monkeypatch.setattr(server, "MOST_PHONES", 2)
    monkeypatch.setattr(server, "MOST_QUESTIONS", 2)
    lesson.show("open")
    assert [lesson.answer(1, f"phone-000000000{number}") for number in range(3)] == [204, 204, 409]
    assert lesson.answer(3) == 400
    assert lesson.show("open", 2)["state"] == "open"
    assert lesson.show("open", 3)["state"] == "wait"
    assert lesson.show("open", 1)["counts"] == [0, 2, 0], "a question shown before is still there"


@pytest.mark.parametrize(
    "body",
    [
        {"id": PHONE, "number": 1, "choice": 3},
        {"id": PHONE, "number": 1, "choice": -1},
        {"id": "short", "number": 1, "choice": 1},
        {"id": PHONE + "<b>", "number": 1, "choice": 1},
        {"id": PHONE, "number": 1, "choice": 1, "name": "x" * 41},
        {"id": PHONE, "number": 1, "choice": 1, "name": 5},
        {"id": PHONE},
        [],
        "x" * 3000,
    ],
)
def test_a_strange_answer_is_refused_in_words(lesson, body):
    lesson.show("open")
    answer = lesson.client.post(lesson.path("answer"), json=body)
    assert answer.status_code in (400, 413) and answer.text
    assert lesson.show("open")["counts"] == [0, 0, 0]


def test_rooms_are_bounded_for_one_address_and_for_all(client, monkeypatch):
    def begun(address):
        return client.post("/c/new", params={"base": BASE}, headers={"X-Forwarded-For": address}).status_code

    monkeypatch.setattr(server, "MOST_ROOMS", server.MOST_EACH + 2)
    assert [begun("1.1.1.1") for _ in range(server.MOST_EACH + 1)] == [200] * server.MOST_EACH + [409]
    assert [begun(f"2.2.2.{number}") for number in range(3)] == [200, 200, 409]


def test_codes_cannot_be_tried_out_and_a_phone_in_the_class_is_not_disturbed(lesson, clock):
    lesson.now()
    tried = [lesson.client.get(f"/c/{number:05d}/now?id={PHONE}").status_code for number in range(server.LIMITS["miss"] + 5)]
    assert tried == [404] * server.LIMITS["miss"] + [429] * 5
    assert lesson.now("phone-1111111111").status_code == 429, "who guesses does not learn that this one is right"
    assert lesson.now().status_code == 200
    clock[0] += server.WINDOW
    assert lesson.now("phone-1111111111").status_code == 200


def test_an_address_asks_so_often_and_no_more(lesson, monkeypatch):
    monkeypatch.setitem(server.LIMITS, "GET", 3)
    assert [lesson.now().status_code for _ in range(4)] == [200, 200, 200, 429]
    other = lesson.client.get(f"{lesson.path('now')}?id={PHONE}", headers={"X-Forwarded-For": "1.1.1.1"})
    assert other.status_code == 200
    monkeypatch.setattr(server, "MOST_COUNTED", 2)
    assert lesson.client.get("/c/AAAAA", headers={"X-Forwarded-For": "1.1.1.2"}).status_code == 429, "a flood of addresses"


@pytest.mark.parametrize(
    ("private", "base", "words"), [(True, BASE, "GRADIO_SERVER_NAME"), (False, "http://localhost:7860/", "localhost")]
)
def test_where_phones_cannot_come_the_class_does_not_start(private, base, words):
    app = Classroom(PlainTextResponse("the app"), lambda: Settings(private=private), Presence().address_in, ask)
    answer = TestClient(app).post("/c/new", params={"base": base})
    assert answer.status_code == 400 and words in answer.text
    assert not app.rooms


@pytest.mark.parametrize("base", ["javascript:alert(1)", "http://[::1", "", "x" * 1900])
def test_an_address_that_is_none_starts_no_class(client, base):
    assert client.post("/c/new", params={"base": base}).status_code == 400


def test_a_phone_loads_little_and_asks_nobody_else(client):
    page_of_phone = client.get("/c/ABCDE")
    files = [page_of_phone, client.get("/c/phone.js"), client.get("/c/phone.css")]
    assert all(one.status_code == 200 for one in files)
    assert sum(len(one.content) for one in files) < 20_000
    assert not any("http" in one.text for one in files) and "cookie" not in "".join(one.text.lower() for one in files)
    assert "default-src 'none'" in page_of_phone.headers["Content-Security-Policy"]
    assert "innerHTML" not in files[1].text + theme.source("classroom/board.js")
    assert not any("set-cookie" in one.headers for one in files)


def test_other_paths_belong_to_the_app(client):
    for path in ("/", "/c", "/config", "/c/ABCDE/now/more"):
        assert client.get(path).text == "the app"


def test_behind_a_path_of_its_own_the_class_works_too(classroom):
    assert "phone.js" in TestClient(classroom, root_path="/proxy/7860").get("/proxy/7860/c/ABCDE").text


def test_lessons_ask_what_their_pages_ask(tmp_path):
    shared = make(Settings(traces=gallery(tmp_path / "traces")), FakeEngine())
    asked = learn_tab.asking(shared)
    title, question = asked("03-chance", 1)
    assert title == "Accepting by chance, and staying exact" and question.answer == 1
    assert asked("03-chance", 0)[1] is None
    for lesson, number in (("none", 0), ("03-chance", 99)):
        with pytest.raises(BadInput):
            asked(lesson, number)
