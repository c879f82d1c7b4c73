"""Files appear whole or not at all, and the store in memory stays within its bounds and keeps users apart."""

import codecs
import gzip
import threading
import tracemalloc
from pathlib import Path

import pytest
from msgspec.structs import replace

from specviz.errors import BadInput, BadTrace
from specviz.trace import store, wire
from specviz.trace.schema import Note
from specviz.trace.validate import MAX_FILE
from tests.support.traces.samples import dump, lines, sample_trace


def test_a_file_is_read_by_path_by_name_and_by_content(tmp_path):
    trace = sample_trace(3)
    path = dump(tmp_path / "a.spectrace.jsonl", trace)
    for source in (path, str(path), path.read_bytes(), path.read_text("utf-8")):
        assert store.read(source) == trace


def test_a_packed_file_is_read_and_written_like_any_other(tmp_path):
    trace, plain, packed = sample_trace(12), tmp_path / "a.spectrace.jsonl", tmp_path / "a.spectrace.jsonl.gz"
    store.write(trace, plain)
    store.write(trace, packed)
    assert store.read(packed) == trace and store.unpacked(packed) == plain.read_bytes()
    assert packed.stat().st_size < plain.stat().st_size / 2
    before = packed.read_bytes()
    store.write(trace, packed)
    assert packed.read_bytes() == before, "the same run gives the same file"


def test_a_packed_file_that_is_damaged_or_would_unpack_without_end_is_refused(tmp_path):
    path = tmp_path / "a.spectrace.jsonl.gz"
    for damaged in (gzip.compress(b"{}" * 900)[:-12], b"no such thing"):
        path.write_bytes(damaged)
        with pytest.raises(BadInput, match="cannot be read"):
            store.read(path)
    path.write_bytes(gzip.compress(bytes(MAX_FILE + 99)))
    assert len(store.unpacked(path)) == MAX_FILE + 1
    with pytest.raises(BadTrace, match="MiB"):
        store.read(path)


def test_a_byte_order_mark_is_no_part_of_a_trace(tmp_path):
    trace, path = sample_trace(3), tmp_path / "a.spectrace.jsonl"
    store.write(trace, path)
    marked = codecs.BOM_UTF8 + path.read_bytes()
    path.write_bytes(marked)
    assert store.read(path) == store.read(marked) == trace
    assert "".join(f"{line}\n" for line in store.rewritten(marked)).encode() == marked.removeprefix(codecs.BOM_UTF8)


def test_a_file_that_is_not_there_is_named(tmp_path):
    for missing in (tmp_path / "none.jsonl", str(tmp_path), "a\x00b"):
        with pytest.raises(BadInput, match="cannot be read"):
            store.read(missing)


def test_a_failed_write_leaves_the_old_file_and_no_scraps(tmp_path, monkeypatch):
    path = dump(tmp_path / "a.spectrace.jsonl")
    before = path.read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(BadInput, match="No space left"):
        store.write(sample_trace(2), path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_run_cut_off_by_a_crash_is_read_up_to_its_last_whole_line():
    made = lines(sample_trace(4))
    assert len(store.read("\n".join(made[:3]) + "\n").steps) == 2
    with pytest.raises(BadTrace) as fault:
        store.read("\n".join(made[:3]) + "\n" + made[3][:50])
    assert fault.value.line == 4


def heavy(steps):
    """A trace whose notes take twenty times their text as Python objects."""
    trace = sample_trace(steps)
    note = Note("x", {"a": [{}] * 4000})
    return store.text(replace(trace, steps=tuple(replace(step, notes=(note,) * 4) for step in trace.steps))).encode()


def peak(work, content):
    """Most bytes that ``work`` had allocated at once, its result included."""
    tracemalloc.start()
    made = work(content)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del made
    return most


@pytest.mark.slow
@pytest.mark.parametrize("work", [lambda content: list(store.rewritten(content)), store.read], ids=["rewritten", "read"])
def test_a_file_takes_the_memory_of_its_lines(work):
    few, many = heavy(2), heavy(10)
    assert peak(work, many) - peak(work, few) < 4 * (len(many) - len(few))


@pytest.mark.slow
def test_large_notes_are_kept_as_text_and_read_as_data():
    few = heavy(2)
    (note, *_) = store.read(few).steps[0].notes
    assert note.data["a"] == [{}] * 4000 and note.data == {"a": [{}] * 4000} and list(note.data) == ["a"]
    assert note.data.get("b") is None and dict(note.data) == {**note.data} and len(note.data) == 1
    assert note == Note("x", {"a": [{}] * 4000}) and store.read(store.text(store.read(few))) == store.read(few)


def test_a_rewritten_file_is_the_same_trace_and_needs_no_second_check(monkeypatch):
    trace, kept = sample_trace(5, method="relaxed"), store.TraceStore()
    text = "\n".join([*lines(trace), wire.line(trace.end, 7)])
    key = kept.new(store.rewritten(text.encode()), checked=True)
    assert kept.lines(key) == lines(trace)
    monkeypatch.setattr(store, "read_lines", None)
    assert kept.trace(key) == trace


def test_a_run_of_ours_that_breaks_the_format_is_found_when_it_is_read():
    kept = store.TraceStore()
    made = lines(sample_trace(3))
    with pytest.raises(BadTrace, match="line 2"):
        kept.trace(kept.new([made[0], made[2]]))


def test_lines_are_kept_in_order_and_handed_out_by_range():
    kept = store.TraceStore()
    made = lines(sample_trace(5))
    key = kept.new(made[:2])
    assert [kept.append(key, one) for one in made[2:]] == list(range(3, len(made) + 1))
    assert kept.lines(key) == made
    assert kept.lines(key, 2, 4) == made[2:4]
    assert kept.lines(key, -5, 1) == made[:1] and kept.lines(key, 90) == [] and kept.lines(key, 0, -1) == []
    assert store.read(kept.text(key)) == sample_trace(5)


def test_keys_cannot_be_guessed_and_never_repeat():
    kept = store.TraceStore(max_traces=300)
    keys = {kept.new() for _ in range(200)}
    assert len(keys) == 200 and min(map(len, keys)) >= 24


def test_the_trace_left_alone_longest_goes_first():
    kept = store.TraceStore(max_traces=2)
    first, second = kept.new(["1"]), kept.new(["2"])
    kept.lines(first)
    third = kept.new(["3"])
    assert first in kept and third in kept and second not in kept
    with pytest.raises(BadInput, match="no longer on the server"):
        kept.lines(second)


def test_the_bytes_of_all_traces_are_bounded():
    kept = store.TraceStore(max_bytes=1000)
    first = kept.new(["a" * 400])
    second = kept.new(["b" * 400])
    kept.append(second, "é" * 150)
    assert first not in kept
    with pytest.raises(BadTrace, match="too large for the server"):
        kept.append(second, "c" * 400)
    assert kept.lines(second, 1) == ["é" * 150]


def test_an_endless_line_is_not_kept():
    kept = store.TraceStore()
    with pytest.raises(BadTrace, match="too large for the server"):
        kept.new(["x", "x" * (2 << 20)])
    assert not kept._entries and kept._size == 0


def test_dropping_gives_the_room_back_and_forgets():
    kept = store.TraceStore()
    key = kept.new(lines(sample_trace(2)))
    kept.drop(key)
    kept.drop(key)
    assert kept._size == 0 and not kept._entries and key not in kept
    for odd in (key, "", None, 3, ["x"]):
        with pytest.raises(BadInput, match="no longer on the server"):
            kept.lines(odd)


def test_runs_appended_from_many_threads_never_mix():
    kept = store.TraceStore()
    keys = [kept.new() for _ in range(8)]

    def feed(number):
        for count in range(300):
            kept.append(keys[number], f"{number}:{count}")
            kept.lines(keys[number - 1], count, count + 1)

    threads = [threading.Thread(target=feed, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, key in enumerate(keys):
        assert kept.lines(key) == [f"{number}:{count}" for count in range(300)]
    assert kept._size == sum(len(kept.text(key)) for key in keys)
