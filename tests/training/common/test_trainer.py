"""What recipes share: work split over threads gives the same sum, and a stopped training leaves a whole checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specviz.training.common import trainer


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_sum_the_same_gradients(workers: int) -> None:
    weight = torch.tensor([2.0, 3.0], requires_grad=True)
    parts = [torch.tensor([float(part), 1.0]) for part in range(7)]
    (found,), value = trainer.gradients(parts, lambda part: (weight * part).sum(), [weight], workers)
    assert found.tolist() == [21.0, 7.0]
    assert value == pytest.approx(2 * 21 + 3 * 7)


def test_a_failing_part_stops_the_update_and_is_told() -> None:
    weight = torch.ones(2, requires_grad=True)

    def loss(part: int) -> torch.Tensor:
        if part == 3:
            raise ArithmeticError("part three")
        return weight.sum()

    with pytest.raises(ArithmeticError, match="part three"):
        trainer.gradients(range(8), loss, [weight], 2)


def test_the_rate_warms_up_stays_and_falls() -> None:
    assert trainer.rate(1.0, 0.0, 0) < trainer.rate(1.0, 0.0, 20) < 1.0
    assert trainer.rate(1.0, 0.3, 500) == 1.0
    assert 1.0 > trainer.rate(1.0, 0.7, 500) > trainer.rate(1.0, 0.9, 500) > 0
    assert trainer.rate(1.0, 1.0, 500) == pytest.approx(0.02)


def test_a_checkpoint_comes_back_and_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "here" / "c.safetensors"
    for update in (1, 2):
        progress = trainer.Progress(updates=update, seconds=1.5, tokens=7, history=[{"loss": 2.0}])
        trainer.write_checkpoint(path, {"weight": torch.full((2,), float(update))}, progress)
    tensors, progress = trainer.read_checkpoint(path)
    assert tensors["weight"].tolist() == [2.0, 2.0]
    assert progress == trainer.Progress(2, 1.5, 7, [{"loss": 2.0}])
    assert [file.name for file in path.parent.iterdir()] == ["c.safetensors"]


def test_going_on_from_nothing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "medusa.safetensors"
    assert not trainer.goes_on(True, file)
    assert "no checkpoint medusa.safetensors" in capsys.readouterr().out
    assert not trainer.goes_on(True, file, before="20 minutes on cpu") and not trainer.goes_on(False, file)
    trainer.write_checkpoint(file, {"weight": torch.zeros(1)}, trainer.Progress())
    assert trainer.goes_on(True, file) and not trainer.goes_on(False, file)
    assert not capsys.readouterr().out


def test_the_clock_counts_training_time_alone() -> None:
    progress = trainer.Progress(seconds=30.0)
    clock = trainer.Clock(progress, minutes=1.0)
    assert clock.share == 0.5
    clock.start()
    clock.stop()
    assert 30.0 <= progress.seconds < 45.0
    progress.seconds = 90.0
    assert clock.share == 1.0
