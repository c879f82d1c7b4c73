"""The program of an answer: run with its check, and bounded in what it may ask for."""

import pytest

from specviz.commands import program
from specviz.commands.program import check_program
from specviz.errors import BadInput

ANSWER = "Sure:\n```python\nimport heapq\n\ndef double(x):\n    print(x)\n    return 2 * x\n```\nIt doubles x."


def test_the_code_of_an_answer_passes_its_check():
    check_program(ANSWER, "assert double(3) == 6")
    check_program("def double(x): return 2 * x", "assert double(3) == 6")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ANSWER.replace("2 *", "3 *"), "The program failed: AssertionError"),
        ("def double(x:", "SyntaxError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import os\nos._exit(0)", "exit status 0"),
        ("open('/etc/passwd')", "asked for a file"),
        ("open('here', 'w')", "asked for a file"),
        ("import socket\nsocket.create_connection(('localhost', 1))", "asked for a file, the network"),
        ("import os\nos.system('true')", "another process"),
        ("import os\nos.fork()", "another process"),
        ("text = 'x' * (4 << 30)", "MemoryError"),
        ("import sys\nwhile True: sys.__stderr__.write('x' * 9999)", "The program"),
    ],
)
def test_a_wrong_or_meddling_program_is_refused(answer, said):
    with pytest.raises(BadInput, match=said):
        check_program(answer, "assert double(3) == 6")


def test_an_endless_program_is_stopped(monkeypatch):
    monkeypatch.setattr(program, "SECONDS", 1)
    with pytest.raises(BadInput, match="did not end within 2 seconds|exit status -"):
        check_program("while True: pass", "")
