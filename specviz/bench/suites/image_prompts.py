"""Sixty-four picture prompts that no model of ours has learned from: faces, animals, plants and food, which image models
learn to draw, of the concepts held out of all training, in each style."""

from __future__ import annotations

STYLES = ("noto", "twemoji", "fluent")
HELD_OUT = (
    "mushroom", "tiger", "doughnut", "panda", "tangerine", "poodle", "black cat", "badger", "rooster", "oyster", "croissant",
    "pot of food", "popcorn", "cooked rice", "spaghetti", "ice", "fork and knife with plate", "face with tongue",
    "squinting face with tongue", "drooling face", "face with spiral eyes", "astonished face", "pleading face",
    "sad but relieved face", "disappointed face", "speech balloon", "face with peeking eye",
)  # fmt: skip


def prompts(count: int = 64) -> list[str]:
    """The first so many: every concept once, in turns of style, then again in the next style."""
    texts = [
        f"{concept}, {STYLES[(place + turn) % len(STYLES)]} style"
        for turn in range(len(STYLES))
        for place, concept in enumerate(HELD_OUT)
    ]
    return texts[:count]
