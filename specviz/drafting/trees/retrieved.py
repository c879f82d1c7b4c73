"""Tree builders for retrieval drafters: a copied continuation as a chain, the best guess as a tree, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

from specviz.drafting.memory.prompt_copy import PromptCopy
from specviz.drafting.memory.retrieval import Retrieval
from specviz.engine.interfaces import Context, Draft, Drafter
from specviz.engine.tree import DraftTree
from specviz.trace.schema import Note


class RootOnly:
    """Tree builder of a single node."""

    def build(self, drafter: Drafter, context: Context) -> Draft:
        return Draft(DraftTree.of([context.ids[-1]], [-1], context.device))


class ChainBuilder:
    """Tree builder that drafts the continuation as a chain, truncated to the remaining room."""

    def build(self, drafter: PromptCopy, context: Context) -> Draft:
        tokens, notes = drafter.continuation(context)
        tokens = list(tokens)[: max(0, context.max_depth - 1)]
        tree = DraftTree.of([context.ids[-1], *tokens], range(-1, len(tokens)), context.device)
        return Draft(tree, confidence=(None,) * len(tree), calls=1 if tokens else 0, notes=notes)


class Retrieved:
    """Tree builder that drafts the best guess of the drafter's memories, truncated at the maximum depth."""

    def build(self, drafter: Retrieval, context: Context) -> Draft:
        guess, memory_notes = drafter.guess(context)
        tokens, parents, depth = [context.ids[-1]], [-1], [0]
        shares: list[float | None] = [None]
        place = {0: 0}
        for node, (token, above) in enumerate(zip(guess.tokens, guess.parents, strict=True), start=1):
            # The last token that the round may add is the bonus token.
            if above not in place or depth[place[above]] + 1 >= context.max_depth:
                continue
            place[node] = len(tokens)
            tokens.append(token)
            parents.append(place[above])
            depth.append(depth[place[above]] + 1)
            shares.append(guess.share(node))
        tree = DraftTree.of(tokens, parents, context.device)

        def renumbered(note: Note) -> Note:
            """Return the note with rows renumbered like the tree's nodes, without the rows of truncated nodes."""
            rows = [{**row, "node": place[row["node"]]} for row in note.data.get("rows", ()) if row["node"] in place]
            return Note(note.type, {**note.data, "rows": rows})

        notes = context.notes(lambda: list(map(renumbered, memory_notes)))
        return Draft(tree, confidence=shares, calls=1 if len(tokens) > 1 else 0, notes=notes)


def followed(tokens: Sequence[int], parents: Sequence[int], emitted: Sequence[int], at: int = 0) -> list[int]:
    """Return the nodes of the path below ``at`` whose tokens are the leading tokens of ``emitted``."""
    nodes, path = {pair: node for node, pair in enumerate(zip(parents, tokens, strict=True))}, list[int]()
    for token in emitted:
        if (at, token) not in nodes:
            break
        path.append(at := nodes[at, token])
    return path
