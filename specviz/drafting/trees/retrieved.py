"""Tree builder for retrieval drafters."""

from __future__ import annotations

from collections.abc import Sequence

from specviz.drafting.memory.retrieval import Retrieval
from specviz.engine.interfaces import Context, Draft
from specviz.engine.tree import DraftTree
from specviz.trace.schema import Note


class Retrieved:
    """Tree builder that drafts the best guess of the drafter's memories, truncated at the maximum depth."""

    def build(self, drafter: Retrieval, context: Context) -> Draft:
        guess, memory_notes = drafter.guess(context)
        tokens, parents, depth = [context.ids[-1]], [-1], [0]
        shares: list[float | None] = [None]
        place = {0: 0}
        for node, (token, above) in enumerate(zip(guess.tokens, guess.parents, strict=True), start=1):
            # The last token that the round may add is the bonus token.
            if above not in place or depth[place[above]] + 1 > context.max_depth - 1:
                continue
            place[node] = len(tokens)
            tokens.append(token)
            parents.append(place[above])
            depth.append(depth[place[above]] + 1)
            shares.append(guess.share(node))
        tree = DraftTree.of(tokens, parents, context.device)
        notes = context.notes(lambda: [_renumber(note, place) for note in memory_notes])
        return Draft(tree, confidence=shares, calls=1 if len(tokens) > 1 else 0, notes=notes)


def _renumber(note: Note, place: dict[int, int]) -> Note:
    """Return the note with rows renumbered like the tree's nodes, without the rows of truncated nodes."""
    rows: Sequence[dict[str, object]] = note.data.get("rows", ())
    kept_rows = [{**row, "node": place[row["node"]]} for row in rows if row["node"] in place]
    return Note(note.type, {**note.data, "rows": kept_rows})


def followed(tokens: Sequence[int], parents: Sequence[int], emitted: Sequence[int], at: int = 0) -> list[int]:
    """Return the nodes on the path of a tree below the node ``at`` that has the leading tokens of ``emitted``."""
    nodes, path = {pair: node for node, pair in enumerate(zip(parents, tokens, strict=True))}, list[int]()
    for token in emitted:
        if (at, token) not in nodes:
            break
        path.append(at := nodes[at, token])
    return path
