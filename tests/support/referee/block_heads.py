"""Block drafters that z-lab's package, DeepSpec and ``speculators`` wrote, kept beside the tests, as they are read here."""

from __future__ import annotations

import gzip
import json
from functools import partial
from typing import Any

from specviz.drafting.networks.block_fill import BlockFill
from specviz.models.heads.published import read
from specviz.models.hub.published import Fit, Repository, layout_of
from tests.support.referee import stored_heads
from tests.support.referee.block_fill import LAYERS, ends, filled

FOLDER = stored_heads.FOLDER.with_name("block_fill")
HEADS: dict[str, dict[str, Any]] = json.loads(gzip.decompress((FOLDER / "heads.json.gz").read_bytes()))
FIT = Fit("tiny", LAYERS, *ends())
stored = partial(stored_heads.stored, cases=HEADS, fill=filled)


def head_of(repository: Repository) -> BlockFill:
    network: BlockFill = read(layout_of(repository).method, repository, FIT)
    return network
