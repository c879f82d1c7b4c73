"""Inspection of a drafter head: how well it predicts a target as loaded, and whether another reading would do better.

A head loaded with other conventions than it was trained with runs without an error and drafts badly. Here the target writes a
few answers once. Every reading of the head is then teacher-forced along them, so readings are compared at the same positions.
"""

from __future__ import annotations

OWN = ("eagle", "eagle3", "medusa")
"""Shipped drafters that can be inspected by name."""

QUESTIONS = (
    "Describe the picture.",
    "What is the most prominent thing in the picture, and where does it stand?",
    "Which colours does the picture have, and where?",
    "Tell a short story about what the picture shows.",
)
"""Questions to a target about the user's picture."""

PROMPTS = (
    "What are three good habits for staying healthy, and why do they help?",
    "Explain how rain forms, step by step.",
    "Write a short story about a fox who learns to swim.",
    "Write a Python function that counts the vowels in a word and explain it.",
)
"""Default prompts of an inspection; none is training data."""
