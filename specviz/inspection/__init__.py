"""Inspection of a drafter head: how well the head predicts a target, and whether another reading of the weights does better.

A reading is a set of conventions, such as layers and norms. A head with the wrong conventions runs without an error but drafts
badly. The inspection teacher-forces each reading along the target's greedy answers and compares acceptance rates.
"""

from __future__ import annotations

OWN = ("eagle", "eagle3", "medusa")
"""Shipped drafters that can be inspected."""

QUESTIONS = (
    "Describe the picture.",
    "What is the most prominent thing in the picture, and where does it stand?",
    "Which colours does the picture have, and where?",
    "Tell a short story about what the picture shows.",
)
"""Default prompts for an inspection with an image."""

PROMPTS = (
    "What are three good habits for staying healthy, and why do they help?",
    "Explain how rain forms, step by step.",
    "Write a short story about a fox who learns to swim.",
    "Write a Python function that counts the vowels in a word and explain it.",
)
"""Default prompts of an inspection, none from the training data."""
