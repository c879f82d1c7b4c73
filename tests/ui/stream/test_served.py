"""A server as a target: only one of the list is asked, and its answer is a run like any other."""

import threading

import pytest

from specviz.engine.stop import Stop
from specviz.errors import BadInput
from specviz.pipeline.request import Memory, Request
from specviz.trace import store
from specviz.trace.schema import End, Run, Step, Trace
from specviz.ui import settings as environment
from specviz.ui.settings import Settings
from specviz.ui.stream.engine import SERVED, with_servers
from specviz.ui.tabs import request_form
from tests.support.fakes import rude_server
from tests.support.fakes.chat_server import WORDS, Script, piece, serving

COUNTERS = """vllm:spec_decode_num_drafts_total{e="0"} %d
vllm:spec_decode_num_draft_tokens_total{e="0"} 8
vllm:spec_decode_num_accepted_tokens_total{e="0"} 4
vllm:spec_decode_num_accepted_tokens_per_pos_total{e="0",position="0"} %d
"""


def local(request, memory, cancel, progress):
    """The engine of this process, which must not be asked for a server's run."""
    raise AssertionError(request.target)


def events(url, allowed):
    request = Request("prompt_lookup", "Why?", target=SERVED + url, temperature=0.0)
    return list(with_servers(local, allowed)(request, Memory(), Stop(), lambda message, share: None))


def test_a_server_of_the_list_is_asked_and_its_counters_are_told():
    script = Script([piece([0, 1]), piece([2, 3, 4], "stop")], metrics=[COUNTERS % (2, 1), COUNTERS % (6, 4)])
    with serving(script) as url:
        run, *steps, end = events(url, (url,))
    assert isinstance(run, Run) and isinstance(end, End) and len(steps) == 2
    assert "method, parameters, draft" in run.warnings[-1], "what the form says of a method is not what ran"
    assert end.text == "".join(WORDS[:5]) and "from the server's counters for all requests during the run: 0.75" in end.message
    trace = Trace(run, tuple(step for step in steps if isinstance(step, Step)), end)
    assert store.read(store.text(trace).encode()).run.method == "served_vllm"


def test_a_stop_reaches_a_server_that_only_pings():
    cancel, found = Stop(), []
    with rude_server.serving(rude_server.MANNERS["pings"]) as url:
        request = Request("prompt_lookup", "Why?", target=SERVED + url, temperature=0.0)
        stream = with_servers(local, (url,))(request, Memory(), cancel, lambda message, share: None)
        worker = threading.Thread(target=lambda: found.extend(stream), daemon=True)
        worker.start()
        cancel.wait(0.3)
        cancel.set()
        worker.join(20.0)
        assert not worker.is_alive(), "the engine is held"
    assert found[-1].reason == "cancelled"


def test_no_other_host_is_asked():
    with serving(Script([piece([0], "stop")])) as url:
        with pytest.raises(BadInput, match="not allowed to connect"):
            events(url, ("http://127.0.0.1:1",))
        allowed = Settings(servers=(url,), any_model=False)
        assert request_form.model(SERVED + url, allowed) == SERVED + url
        with pytest.raises(BadInput, match="only to the servers that SPECVIZ_SERVERS named"):
            request_form.model(SERVED + "http://169.254.169.254", Settings(servers=(url,), any_model=True))


def test_the_list_comes_from_the_environment_and_stands_among_the_targets():
    found = environment.read({"SPECVIZ_SERVERS": "127.0.0.1:8000, http://gpu.local:8080/v1"})
    assert found.servers == ("http://127.0.0.1:8000", "http://gpu.local:8080")
    assert request_form.servers(found)[1] == ("Server at gpu.local:8080", "server:http://gpu.local:8080")
    assert not environment.read({}).servers
    with pytest.raises(BadInput, match="not a server address"):
        environment.read({"SPECVIZ_SERVERS": "file:///etc/passwd"})
