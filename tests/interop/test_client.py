"""The client of other engines: addresses in one form, and an end whatever a server does."""

import threading

import pytest

from specviz.engine.stop import Stop
from specviz.errors import BadInput
from specviz.interop import client
from specviz.interop.client import BrokenOff, Cancelled, Client, address
from specviz.interop.server import Answer, Server, identify
from specviz.pipeline.request import Request
from specviz.trace.schema import Run
from tests.support.fakes.rude_server import HEAD, MANNERS, serving

PATIENCE = 20.0
"""Seconds after which a test takes an exchange for endless; a stop needs a quarter of one."""


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"), ("HTTP://Host:80/", "http://host:80"),
        ("https://host/llm/qwen", "https://host/llm/qwen"), ("http://host/llm/qwen/v1/", "http://host/llm/qwen"),
        ("http://host:8080/v1", "http://host:8080"), ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://bücher.example", "http://xn--bcher-kva.example"), ("http://my_service:8000", "http://my_service:8000"),
        ("http://host/ü", "http://host/%C3%BC"),
    ],
)  # fmt: skip
def test_an_address_has_one_form_and_keeps_its_path(given, asked):
    assert address(given) == asked


@pytest.mark.parametrize(
    "given",
    [
        "", "http://", "//x", "file:///etc/passwd", "ftp://host", "http://user:secret@host", "http://@host", "http://[::1",
        "127.0.0.1:abc", "http://h:99999", "http://h:-1", "http://h:0", "http://.", "http://a..b", "http://xn--", "http://a b",
        "http://\x00", "http://h/a\nb", "http://h/?x=1", "http://h/#y", "http://" + "a" * 70_000, "http://" + "a" * 64, "\ud800",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_in_one_sentence(given):
    with pytest.raises(BadInput, match="not a server address") as refusal:
        address(given)
    assert len(str(refusal.value)) < 400


def answer(url, cancel):
    return Answer(Server(url, "vllm", "m"), Request("autoregressive", "Why?"), cancel).events()


def ended(url, cancel):
    """What an answer brought, from a thread that has to end."""
    found = []
    worker = threading.Thread(target=lambda: found.extend(answer(url, cancel)), daemon=True)
    worker.start()
    worker.join(PATIENCE)
    assert not worker.is_alive(), "the answer goes on"
    return found


@pytest.mark.parametrize("manner", MANNERS)
def test_a_stop_ends_an_answer_whatever_the_server_does(manner):
    cancel = Stop()
    with serving(MANNERS[manner]) as url:
        threading.Timer(0.3, cancel.set).start()
        run, end = ended(url, cancel)
    assert isinstance(run, Run) and end.reason == "cancelled"


def test_a_time_limit_ends_an_answer_and_says_so():
    stop = Stop(lambda: (0.3, "A run has 0.3 s here."))
    stop.begin()
    with serving(MANNERS["pings"]) as url:
        _, end = ended(url, stop)
    assert (end.reason, end.message) == ("time_limit", "A run has 0.3 s here.")


@pytest.mark.parametrize("path", [b"GET /v1/models", b"GET /metrics"])
def test_a_stop_ends_every_other_exchange_too(path):
    cancel = Stop()
    with serving(MANNERS["pings"], path) as url:
        threading.Timer(0.3, cancel.set).start()
        if path == b"GET /v1/models":
            with pytest.raises(Cancelled):
                identify(url, cancel=cancel)
        else:
            assert ended(url, cancel)


@pytest.mark.parametrize(
    ("limit", "value", "manner", "words"),
    [
        ("ANSWER_SECONDS", 0.3, "pings", "longer than 0.3 s"), ("SILENT_SECONDS", 0.3, "nothing", "sent nothing for 0.3 s"),
        ("MOST_ANSWER", 1 << 20, "a body without end", "the response is too long"),
        ("ANSWER_SECONDS", 0.3, "slow headers", "longer than 0.3 s"),
    ],
)  # fmt: skip
def test_time_and_bytes_are_bounded(limit, value, manner, words, monkeypatch):
    monkeypatch.setattr(client, limit, value)
    with serving(MANNERS[manner]) as url, pytest.raises(BadInput, match=words):
        list(answer(url, Stop()))


def test_a_page_is_bounded_as_well(monkeypatch):
    monkeypatch.setattr(client, "MOST_PAGE", 1000)
    for manner, words in (("pings", "longer than 0.3 s"), ("a body without end", "the response is too long")):
        with serving(MANNERS[manner], b"GET /page") as url, Client(url) as one, pytest.raises(BrokenOff, match=words):
            one.page("/page", seconds=0.3)


def test_an_event_of_many_lines_is_one_and_one_too_long_is_refused(monkeypatch):
    def lines(over):
        yield HEAD + b': a\r\nevent: x\r\ndata: {"id":\r\nda'
        yield b'ta:  "a"}\r\n\r\ndata: {"id": "b"}\n\ndata: [DONE]\n'

    def long(over):
        yield HEAD + b"data: " + b"x" * 70_000

    with serving(lines) as url, Client(url) as one:
        assert [event and event.id for event in one.events("/x", {})] == ["a", "b", None]
    monkeypatch.setattr(client, "MOST_EVENT", 1000)
    with serving(long) as url, Client(url) as one, pytest.raises(BrokenOff, match="an event is too long"):
        list(one.events("/x", {}))


def test_no_redirection_and_no_proxy_is_followed(monkeypatch):
    def elsewhere(over):
        yield b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/secret\r\nContent-Length: 0\r\n\r\n"

    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving(elsewhere, b"GET ") as url, pytest.raises(BadInput, match="status 302"):
        identify(url)
    with pytest.raises(BadInput, match="a header may not contain"):
        Client("http://host", key="a\r\nHost: b")
