"""How each verdict looks and reads: colour, symbol and line dash together, so that no meaning hangs on colour alone."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.trace.schema import ACCEPTED, PRUNED, REJECTED, RELAXED, RESAMPLED, ROOT, SKIPPED, Bonus, Node, Step
from specviz.views.theme import Theme, number

BONUS = "bonus"
JUDGED = (ACCEPTED, RELAXED, REJECTED, RESAMPLED)
ORDER = (ROOT, ACCEPTED, RELAXED, REJECTED, RESAMPLED, SKIPPED, PRUNED, BONUS)


@dataclass(frozen=True)
class Look:
    """What a verdict looks like. ``fill`` is the pill's colour, ``line`` its outline and edge, ``text`` its letters."""

    label: str
    symbol: str
    dash: str
    width: float
    fill: str
    line: str
    text: str
    double: bool = False


def look(status: str, theme: Theme) -> Look:
    """The look of a status, or of ``"bonus"``."""
    paper = theme.paper
    return {
        ROOT: Look("last committed token", "square", "solid", 1.4, theme.ink, theme.ink, paper),
        ACCEPTED: Look("accepted", "circle", "solid", 4, theme.accepted, theme.accepted, theme.on_fill),
        RELAXED: Look(
            "accepted by relaxation", "star", "solid", 4, theme.tints["relaxed"], theme.relaxed, theme.relaxed, True
        ),
        REJECTED: Look("rejected", "x", "6px,3px", 1.6, paper, theme.rejected, theme.rejected),
        RESAMPLED: Look(
            "rejected, redrawn", "triangle-down", "8px,3px,2px,3px", 1.6, paper, theme.resampled, theme.resampled
        ),
        SKIPPED: Look("never judged", "circle-open", "1.5px,3px", 1.2, paper, theme.quiet, theme.mute),
        PRUNED: Look("pruned", "line-ew-open", "1px,5px", 1.2, paper, theme.quiet, theme.mute),
        BONUS: Look("bonus", "diamond", "2px,2px", 1.8, theme.tints["bonus"], theme.bonus, theme.bonus),
    }[status]


def reason(step: Step, node: Node) -> str:
    """Why this node got its verdict, in one plain sentence."""
    plain = {
        ROOT: "The last committed token: the step starts here and nobody judges it.",
        SKIPPED: "Never judged: the walk ended before it reached this node.",
        PRUNED: "Drafted, but never sent to the target.",
    }
    if node.status in plain:
        return plain[node.status]
    kept = node.status in (ACCEPTED, RELAXED)
    if step.rule in ("greedy", "match"):
        chosen = "likeliest token" if step.rule == "greedy" else "own draw"
        return (
            f"Accepted: it is the target's {chosen} here."
            if kept
            else f"Rejected: the target's {chosen} here is another token."
        )
    if step.rule == "typical" and node.p is not None and node.threshold is not None:
        return _typical(node, kept)
    if step.rule == "traversal" and kept and node.draw is None:
        return "Accepted with its path: a node below it was kept, so it needed no draw of its own."
    word = {ACCEPTED: "Accepted", RELAXED: "Accepted by relaxation", RESAMPLED: "Rejected, and another token was drawn"}
    said = word.get(node.status, "Rejected")
    if node.draw is None or node.threshold is None:
        return f"{said} by the {step.rule.replace('_', ' ')} rule."
    side = "below" if kept else "not below"
    return f"{said}: the draw {number(node.draw, 3)} is {side} the threshold {number(node.threshold, 3)}."


def _typical(node: Node, kept: bool) -> str:
    """The rule draws nothing: the token's probability is held against the threshold itself."""
    numbers = f"p {number(node.p, 3)}", f"the threshold {number(node.threshold, 3)}"
    if not kept and (node.p or 0.0) > (node.threshold or 0.0):
        return f"Rejected: {numbers[0]} is above {numbers[1]}, but another branch went further."
    strictly = "" if node.status != RELAXED else "; the target's own draw was another token"
    side = "above" if kept else "not above"
    return f"{'Accepted' if kept else 'Rejected'}: {numbers[0]} is {side} {numbers[1]}{strictly}."


def bonus_reason(bonus: Bonus) -> str:
    """Where the bonus token came from, in one plain sentence."""
    if bonus.source == "residual":
        return "The target's own token, drawn from what the rejections left of its law."
    return "The target's own token, which every step gives for free."
