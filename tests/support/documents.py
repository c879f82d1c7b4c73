"""What documents list of the registry: ``python -m tests.support.documents`` writes it anew between its marks."""

from __future__ import annotations

from pathlib import Path

from specviz.methods.registry import families

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- methods: python -m tests.support.documents -->\n", "<!-- end of methods -->\n"
COLUMNS = {"text": "text", "vision_language": "picture to text", "image": "text to picture"}


def methods() -> str:
    """README's table: every method by its family and by the targets that it drafts for with what ships."""
    lines = [f"| family | {' | '.join(COLUMNS.values())} |", "|---" * (1 + len(COLUMNS)) + "|"]
    for title, listed in families().items():
        cells = [", ".join(f"`{one.name}`" for one in listed if modality in one.modality) for modality in COLUMNS]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def pairs() -> str:
    """PAIRS.md's table: what each system runs on beyond what ships."""
    lines = ["| System | Published pair, or what is missing |", "|---|---|"]
    lines += [f"| {one.title} `{one.name}` | {one.pair} |" for listed in families().values() for one in listed if one.pair]
    return "\n".join(lines) + "\n"


TABLES = {ROOT / "README.md": methods, ROOT / ".github" / "PAIRS.md": pairs}


def written(document: Path) -> str:
    """The document with its table made anew."""
    before, _, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + TABLES[document]() + END + rest.partition(END)[2]


if __name__ == "__main__":
    for document in TABLES:
        document.write_text(written(document), encoding="utf-8")
