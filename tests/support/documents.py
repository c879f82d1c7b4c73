"""What documents list of the registry: ``python -m tests.support.documents`` writes it anew between its marks."""

from __future__ import annotations

from pathlib import Path

from specviz.methods.registry import families

README = Path(__file__).resolve().parents[2] / "README.md"
BEGIN, END = "<!-- methods: python -m tests.support.documents -->\n", "<!-- end of methods -->\n"
COLUMNS = {"text": "on text", "vision_language": "on pictures in, words out", "image": "on words in, pictures out"}


def methods() -> str:
    """README's table: every method by its family and by the targets that it drafts for with what ships."""
    lines = [f"| family | {' | '.join(COLUMNS.values())} |", "|---" * (1 + len(COLUMNS)) + "|"]
    for title, listed in families().items():
        cells = [" · ".join(f"`{one.name}`" for one in listed if modality in one.modality) for modality in COLUMNS]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def written(text: str) -> str:
    """README with its table made anew."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + methods() + END + rest.partition(END)[2]


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
