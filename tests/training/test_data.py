"""Reading, splitting and packing dialogues: nothing held out is trained on, nothing is padding, only answers count."""

from itertools import islice

import numpy as np
import pytest

from specviz.errors import BadInput
from specviz.training import data
from specviz.training.data import Dialogue, dialogues_of, packed
from tests.support.training.tiny_training import END, MARKERS, VOCAB, dialogues


def test_a_training_that_reads_in_turn_visits_all_before_any_twice_wherever_it_begins():
    chosen = list(range(100, 107))
    whole = data.cycle_shuffled(chosen, 0, 28, [3])
    assert all(sorted(whole[at : at + 7]) == chosen for at in range(0, 28, 7)) and whole[:7] != whole[7:14]
    assert [data.cycle_shuffled(chosen, at, 5, [3]) for at in range(9)] == [whole[at : at + 5] for at in range(9)]
    assert data.cycle_shuffled(chosen, 0, 28, [4]) != whole


def test_a_missing_file_names_the_command_that_makes_one(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_DATA", str(tmp_path / "none.npz"))
    with pytest.raises(BadInput, match="train dialogues"):
        data.find()


def test_the_environment_names_the_file_and_an_argument_wins(tmp_path, monkeypatch):
    for name in ("a.npz", "b.npz"):
        data.write(tmp_path / name, dialogues(2))
    monkeypatch.setenv("SPECVIZ_DATA", str(tmp_path / "a.npz"))
    assert [file.name for file in data.find()] == ["a.npz"]
    both = [str(tmp_path / "b.npz"), str(tmp_path / "a.npz")]
    assert [file.name for file in data.find(both)] == ["b.npz", "a.npz"]
    with pytest.raises(BadInput, match="c.npz"):
        data.find([*both, str(tmp_path / "c.npz")])


def test_what_ships_is_read_beside_the_users_own_file(tmp_path, monkeypatch):
    monkeypatch.delenv("SPECVIZ_DATA", raising=False)
    monkeypatch.setattr(data, "ASSETS", tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("data/two.npz", "data/one.npz", "own.npz"):
        data.write(tmp_path / name, dialogues(2))
    monkeypatch.setattr(data, "place", lambda *_: tmp_path / "own.npz")
    assert [file.name for file in data.find()] == ["one.npz", "two.npz", "own.npz"]
    (tmp_path / "own.npz").unlink()
    assert [file.name for file in data.find()] == ["one.npz", "two.npz"]


def test_a_damaged_file_is_refused(tmp_path):
    np.savez(tmp_path / "short.npz", tokens=np.arange(3, dtype=np.uint16))
    with pytest.raises(BadInput, match="lacks length"):
        data.read(tmp_path / "short.npz")
    made = dialogues(3)
    data.write(tmp_path / "cut.npz", data.Dialogues(made.tokens[:-1], made.starts, made.prompt, made.temperature))
    with pytest.raises(BadInput, match="lengths are inconsistent"):
        data.read(tmp_path / "cut.npz")


def test_no_held_out_question_is_trained_on():
    made = dialogues(200)
    training, held_out = data.split(made)
    asked = [tuple(made.of(number)[: made.prompt[number]]) for number in range(200)]
    assert held_out and not set(training) & set(held_out)
    assert not {asked[number] for number in training} & {asked[number] for number in held_out}
    repeated = data.Dialogues(
        np.concatenate([made.tokens] * 2), np.concatenate((made.starts, made.starts[1:] + made.starts[-1])),
        np.concatenate([made.prompt] * 2), np.concatenate([made.temperature] * 2),
    )  # fmt: skip
    training, held_out = data.split(repeated)
    asked += asked
    assert not {asked[number] for number in training} & {asked[number] for number in held_out}


def test_rows_are_full_and_count_each_answer_token_once():
    made = dialogues(20)
    length = 64
    for row in islice(data.rows(made, range(20), MARKERS, length, np.random.default_rng(0)), 12):
        assert len(row.tokens) == length + 1 and len(row.counts) == length
        assert tuple(row.tokens[:3]) == MARKERS.prefix
        counted = row.tokens[1:][row.counts]
        assert set(counted) <= set(range(5, VOCAB)) | {END}
        rise = [(a, b) for a, b in zip(counted, counted[1:], strict=False) if END not in (a, b)]
        assert all(b == 5 + (a - 4) % 35 for a, b in rise), "an answer is read in order, questions are not counted"


def test_an_answer_that_was_cut_is_closed_before_the_next_turn():
    made = dialogues(4)
    cut = data.Dialogues(np.where(made.tokens == END, 9, made.tokens), made.starts, made.prompt, made.temperature)
    row = next(data.rows(cut, range(4), MARKERS, 40, np.random.default_rng(0)))
    first_turn = list(row.tokens).index(END)
    assert tuple(row.tokens[first_turn + 1 : first_turn + 3]) == MARKERS.turn
    assert not row.counts[first_turn - 1], "an end the target did not write is no answer"


def test_the_draft_vocabulary_is_the_most_used_words_and_the_end():
    made = dialogues(40)
    ids, count = data.draft_vocabulary(made, range(40), 10, VOCAB, [END, 0])
    used = np.bincount(np.concatenate([made.answer(number) for number in range(40)]), minlength=VOCAB)
    assert len(ids) == 10 and END in ids and 0 in ids and (np.diff(ids) > 0).all()
    assert (count == used[ids]).all()
    left_out = np.setdiff1d(np.arange(VOCAB), ids)
    assert used[left_out].max() <= min(used[one] for one in ids if one not in (END, 0))


def test_several_files_are_read_as_one_and_no_answer_twice(tmp_path):
    first, second = tmp_path / "first.npz", tmp_path / "second.npz"
    told = [Dialogue((7, 8), tuple(range(10, 40)), 0.0, "chat"), Dialogue((9,), tuple(range(50, 90)), 1.0, "code", True)]
    data.write(first, packed(told))
    data.write(second, packed([told[1], Dialogue((5, 6), tuple(range(100, 130)), 0.3, "maths", True)]))
    made = data.read_all([first, second])
    assert list(dialogues_of(made)) == [*told, Dialogue((5, 6), tuple(range(100, 130)), float(np.float16(0.3)), "maths", True)]
    assert list(dialogues_of(data.read_all([first]))) == told


def test_of_a_file_that_tells_no_kinds_every_twentieth_is_kept_out(tmp_path):
    generator = np.random.default_rng(0)
    told = [Dialogue((7,), tuple(generator.integers(0, 999, 30).tolist()), 0.0) for _ in range(40)]
    data.write(tmp_path / "whole.npz", packed(told))
    with np.load(tmp_path / "whole.npz") as file:
        plain = {name: file[name] for name in ("tokens", "length", "prompt_length", "temperature")}
    for name in ("first.npz", "second.npz"):
        np.savez(tmp_path / name, **plain)
    made = data.read_all([tmp_path / "first.npz", tmp_path / "second.npz"])
    assert len(made) == 40 and {one.kind for one in dialogues_of(made)} == {"unprompted"}
    assert np.flatnonzero(made.held_out).tolist() == [19, 39]


def test_the_same_dialogues_stay_unread_when_a_file_grows():
    generator = np.random.default_rng(1)
    told = [Dialogue((7,), tuple(generator.integers(0, 999, 9).tolist()), 0.0) for _ in range(600)]
    small, large = packed(told[:300]), packed(told)
    read, unread = data.split_unread(small, range(300))
    assert sorted(read + unread) == list(range(300)) and 10 < len(unread) < 45
    assert [number for number in data.split_unread(large, range(600))[1] if number < 300] == unread
