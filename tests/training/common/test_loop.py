"""The training loop: threads sum the same, checkpoints come back whole, milestones, early stopping, an exact resumption."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specviz.errors import BadInput
from specviz.training.common import loop, parallel
from specviz.training.common.loop import Progress, Schedule, Step, TrainState, train
from specviz.training.common.optimizer import Optimizer


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_sum_the_same_gradients(workers: int) -> None:
    weight = torch.tensor([2.0, 3.0], requires_grad=True)
    parts = [torch.tensor([float(part), 1.0]) for part in range(7)]
    (found,), value = parallel.gradients(parts, lambda part: (weight * part).sum(), [weight], workers)
    assert found.tolist() == [21.0, 7.0]
    assert value == pytest.approx(2 * 21 + 3 * 7)


def test_a_failing_part_stops_the_update_and_is_told() -> None:
    weight = torch.ones(2, requires_grad=True)

    def loss(part: int) -> torch.Tensor:
        if part == 3:
            raise ArithmeticError("part three")
        return weight.sum()

    with pytest.raises(ArithmeticError, match="part three"):
        parallel.gradients(range(8), loss, [weight], 2)


def test_the_rate_warms_up_stays_and_falls() -> None:
    assert loop.rate(1.0, 0.0, 0) < loop.rate(1.0, 0.0, 20) < 1.0
    assert loop.rate(1.0, 0.3, 500) == 1.0
    assert 1.0 > loop.rate(1.0, 0.7, 500) > loop.rate(1.0, 0.9, 500) > 0
    assert loop.rate(1.0, 1.0, 500) == pytest.approx(0.02)


def test_a_checkpoint_comes_back_and_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "here" / "c.safetensors"
    for update in (1, 2):
        progress = loop.Progress(updates=update, seconds=1.5, tokens=7, history=[{"loss": 2.0}])
        loop.write_checkpoint(path, {"weight": torch.full((2,), float(update))}, progress)
    tensors, progress = loop.read_checkpoint(path)
    assert tensors["weight"].tolist() == [2.0, 2.0]
    assert progress == loop.Progress(2, 1.5, 7, [{"loss": 2.0}])
    assert [file.name for file in path.parent.iterdir()] == ["c.safetensors"]


def test_going_on_from_nothing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "medusa.safetensors"
    assert not loop.can_resume(True, file)
    assert "no checkpoint medusa.safetensors" in capsys.readouterr().out
    assert not loop.can_resume(True, file, provenance="20 minutes on cpu") and not loop.can_resume(False, file)
    loop.write_checkpoint(file, {"weight": torch.zeros(1)}, loop.Progress())
    assert loop.can_resume(True, file) and not loop.can_resume(False, file)
    assert not capsys.readouterr().out


def test_the_clock_counts_training_time_alone() -> None:
    progress = loop.Progress(seconds=30.0)
    clock = loop.Clock(progress, minutes=1.0)
    assert clock.share == 0.5
    clock.start()
    clock.stop()
    assert 30.0 <= progress.seconds < 45.0
    progress.seconds = 90.0
    assert clock.share == 1.0


def test_a_checkpoint_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It called the provenance ``before`` and knew no stages."""
    old = {"updates": 3, "seconds": 9.0, "tokens": 5, "history": [{"tau": 2.0}], "before": "20 minutes on cpu"}
    save_file({"weight": torch.ones(1)}, tmp_path / "c.safetensors", metadata={"progress": json.dumps(old)})
    assert loop.read_checkpoint(tmp_path / "c.safetensors")[1] == Progress(3, 9.0, 5, [{"tau": 2.0}], "20 minutes on cpu")


SETTINGS = Schedule(minutes=60.0, peak=0.05, every=1e-9)


class Toy(TrainState):
    """Numbers by which a weight is pulled, each update's its own; a loss and a held-out figure that are known."""

    def __init__(self, settings: Schedule = SETTINGS, taus: Iterator[float] | None = None, stop: int = 10**9) -> None:
        self.weight, self.kept, self.taus, self.stop = torch.ones(3, 2), torch.zeros(1), taus, stop
        super().__init__(settings, Optimizer({"w": self.weight}), buffers={"count": self.kept})
        self.settled, self.measured, self.exported = 0, list[torch.Tensor](), list[torch.Tensor]()

    def begin(self) -> None:
        self.position = self.progress.updates

    def settle(self) -> None:
        self.settled += 1

    def step(self, share: float) -> Step:
        self.position, self.kept[0] = self.position + 1, self.kept[0] + 1
        if self.position > self.stop:
            raise KeyboardInterrupt
        generator = torch.Generator().manual_seed(self.position)
        return Step(1.0, 7, {"w": torch.randn(3, 2, generator=generator)})

    def measure(self) -> Mapping[str, float]:
        self.measured.append(self.weight.clone())
        return {"held_out": 3.0, "tau": next(self.taus) if self.taus else 1.0}

    def export(self) -> None:
        self.exported.append(self.weight.clone())


def stopped_after(updates: int, checkpoint: Path, settings: Schedule = SETTINGS) -> Toy:
    state = Toy(settings, stop=updates)
    with pytest.raises(KeyboardInterrupt):
        train(state, checkpoint, lambda entry: None)
    return state


def test_a_milestone_tells_train_and_held_out_loss_and_the_gap_of_the_averaged_weights(tmp_path: Path) -> None:
    told: list[dict[str, float]] = []
    state = Toy(stop=4)
    with pytest.raises(KeyboardInterrupt):
        train(state, tmp_path / "c.safetensors", lambda entry: told.append(dict(entry)))
    assert [entry["updates"] for entry in told] == [1, 2, 3, 4] and told[-1]["tokens"] == 28
    assert (told[-1]["loss"], told[-1]["held_out"], told[-1]["gap"]) == (1.0, 3.0, 2.0)
    assert torch.equal(state.measured[-1], state.optimizer.averaged()["w"]) and torch.equal(
        state.exported[-1], state.measured[-1]
    )
    assert not torch.equal(state.weight, state.measured[-1]), "its own weights are back"
    assert state.settled == 3 * 4, "after each update, and when weights are exchanged"


def test_marks_ask_for_milestones_between_those_of_the_clock(tmp_path: Path) -> None:
    told: list[dict[str, float]] = []
    state = Toy(replace(SETTINGS, every=1e9, marks=(10, 14, 21)), stop=5)
    with pytest.raises(KeyboardInterrupt):
        train(state, tmp_path / "c.safetensors", lambda entry: told.append(dict(entry)))
    assert [entry["tokens"] for entry in told] == [14, 21], "one milestone for two marks that an update passed"


def test_a_resumed_training_does_update_by_update_what_an_unbroken_one_does(tmp_path: Path) -> None:
    whole = stopped_after(9, tmp_path / "whole")
    stopped_after(4, tmp_path / "c")
    again = stopped_after(9, tmp_path / "c", replace(SETTINGS, resume=True))
    assert again.progress.updates == whole.progress.updates == 9 and again.progress.tokens == 63
    assert torch.equal(again.weight, whole.weight) and again.kept[0] == 10
    for name, value in whole.tensors().items():
        assert torch.equal(again.tensors()[name], value), name


def test_between_milestones_a_checkpoint_is_written_by_the_wall_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    state = stopped_after(5, tmp_path / "c", replace(SETTINGS, every=50.0))
    assert not state.progress.history and loop.read_checkpoint(tmp_path / "c")[1].updates == 5


def test_without_patience_training_goes_on_and_with_it_the_best_weights_stay(tmp_path: Path) -> None:
    taus = [2.0, 2.4, *[2.3] * 50]
    state = Toy(replace(SETTINGS, patience=3), iter(taus))
    progress = train(state, tmp_path / "c", lambda entry: None)
    assert [entry["tau"] for entry in progress.history] == taus[:5]
    assert torch.equal(state.weight, state.measured[1])
    endless = Toy(SETTINGS, iter(taus), stop=20)
    with pytest.raises(KeyboardInterrupt):
        train(endless, tmp_path / "d", lambda entry: None)
    assert endless.progress.updates == 20


def test_milestones_of_a_stage_that_measures_nothing_try_no_patience(tmp_path: Path) -> None:
    state = Toy(replace(SETTINGS, patience=2), iter([2.0, 1.5, 1.5, *[9.0] * 9]))
    figures, silent = state.measure, [{}, {}, {}, {}]
    state.measure = lambda: silent.pop() if silent else figures()  # type: ignore[method-assign]
    progress = train(state, tmp_path / "c", lambda entry: None)
    assert [entry.get("tau") for entry in progress.history] == [None] * 4 + [2.0, 1.5, 1.5]
    assert torch.equal(state.weight, state.measured[0])


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    loop.write_checkpoint(tmp_path / "c", {"weight.w": torch.ones(5, 5)}, Progress(3))
    with pytest.raises(BadInput, match="delete it, or train without --resume"):
        train(Toy(replace(SETTINGS, resume=True)), tmp_path / "c", lambda entry: None)


def test_when_the_time_was_spent_already_the_averaged_weights_are_put_back(tmp_path: Path) -> None:
    state = stopped_after(6, tmp_path / "c")
    over = Toy(replace(SETTINGS, minutes=1e-12, resume=True))
    assert train(over, tmp_path / "c").updates == 6
    assert torch.equal(over.weight, state.optimizer.averaged()["w"])
