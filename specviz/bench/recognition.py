"""What ``scenes-vlm`` recognises in pictures made by other means than the renderer of its training scenes.

``assets/images/scenes/foreign.json`` says how they were made, and what they show and are asked. Answers are greedy.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from specviz.bench.report import Report, Row
from specviz.models.vision import scenes
from specviz.models.vision.scenes import END, admits
from specviz.paths import SCENES, WEIGHTS
from specviz.training.families.scenes_vlm import Learner, answers
from specviz.training.families.scenes_words import DESCRIBE, KINDS, Writer

GOALS = {"names": 95, "colours": 95, "left or right": 97, "counts": 90, "unknown admitted": 90}
"""Goals in percent."""
_LONGEST = 200
_LISTS = re.compile(r"\b(there (is|are)|you can see|(is|are) (at|on|in)) ")
_NAME = re.compile(rf"\b({'|'.join(KINDS)})\b")


def listed(description: str) -> Counter[str]:
    """Return the names in the sentences of a description that list a thing with its place."""
    parts = [part.lower() for part in description.split(".") if _LISTS.search(part) and " thing" not in part]
    return Counter(name for part in parts for name in _NAME.findall(part)[:1])


def shares(every: int = 1) -> dict[str, dict[str, list[float]]]:
    """Return how much of each answer is right, from 0 to 1, by column and kind of picture; of every ``every``-th picture.

    A description's share is of the names there or said. ``known denied``: whether it admits to knowing nothing, wrongly.
    """
    index = json.loads((SCENES / "foreign.json").read_text("utf-8"))
    sheet, side = np.asarray(Image.open(SCENES / "foreign.webp").convert("RGB")), index["side"]
    tiles = sheet.reshape(-1, side, index["columns"], side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)[::every]
    pictures = index["pictures"][::every]
    asked = [(place, *one) for place, picture in enumerate(pictures) for one in (("", DESCRIBE[0], ""), *picture["asked"])]
    model, tokenizer = scenes.load(WEIGHTS / "scenes_vlm.safetensors")
    learner, writer, found = Learner(model), Writer(tokenizer), dict[str, dict[str, list[float]]]()
    with torch.no_grad():
        visual = learner.visual_tokens(torch.from_numpy(tiles[: len(pictures)].copy()))[[place for place, *_ in asked]]
    said = answers(learner, visual, [writer.ids(question) for _, _, question, _ in asked], writer, _LONGEST)
    for (place, column, _, want), ids in zip(asked, said, strict=True):
        answer, picture = str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)).removesuffix(END), pictures[place]
        there, names = Counter(picture["names"]), listed(answer)
        if column:
            right = {column: float(f" {want} " in f" {re.split('[.?] ', answer.rstrip('.'))[-1]} ")}
        elif there:
            share = sum((there & names).values()) / sum((there | names).values())
            right = {"names": share, "known denied": float(admits(answer))}
        else:
            right = {"unknown admitted": float(admits(answer))}
        for name, value in right.items():
            found.setdefault(name, {}).setdefault(picture["kind"], []).append(value)
    return found


def run(report: Report, target: str, methods: Sequence[str], quick: bool) -> None:
    """Ask about all pictures, or every eighth, and report the share of right answers in percent."""
    report.where["target"] = "scenes-vlm"
    for column, kinds in shares(8 if quick else 1).items():
        each = [share for values in kinds.values() for share in values]
        detail = ", ".join(f"{kind} {100 * float(np.mean(values)):.0f}" for kind, values in kinds.items())
        goal, at_most = GOALS.get(column, 5), column not in GOALS
        share, detail = 100 * float(np.mean(each)), f"{len(each)} answers; {detail}"
        report.add(Row(column, share, "%", goal, at_most=at_most, detail=detail))
