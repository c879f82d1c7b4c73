"""Inspection report on a drafter: files, acceptance rates and alternative readings, as text and as plain data."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from specviz.drafting.networks.block_fill import BlockFill
from specviz.drafting.networks.eagle_head import EagleHead, PublishedEagleHead
from specviz.drafting.networks.head_config import HeadConventions
from specviz.drafting.networks.parallel_net import ParallelNet
from specviz.drafting.runtimes.visual_context import EMBEDDINGS
from specviz.engine.stop import heed
from specviz.errors import ModelUnavailable
from specviz.figures.drafter_readings import MOST, Lens, acceptance_of_readings, logit_lens
from specviz.figures.reliability import Bin, binned, calibration_error, of_bins
from specviz.inspection import OWN
from specviz.inspection.diagnosis import ROUNDS, Diagnosis, advice, judge
from specviz.inspection.forced import Reading, TeacherForcedStats, teacher_force_parallel
from specviz.inspection.passages import Passage, open_target, passages
from specviz.inspection.readings import Head, required_layers
from specviz.models.device import check_room
from specviz.models.heads.heads import fit_of, is_shipped, load_heads
from specviz.models.heads.intermediate_models import matrix
from specviz.models.heads.published import read
from specviz.models.hub.cache_dir import Progress
from specviz.models.hub.published import Fit, drafting, layout_of, open_repository
from specviz.models.room import second_models
from specviz.models.text.load import LoadedText
from specviz.models.vision.vision_language import LoadedVisionLanguage
from specviz.targets.hybrid import CausalTarget


@dataclass
class Report:
    """Result of an inspection. ``stored``: data on the files; ``head``: data on the network; ``lens``: logit lens per layer."""

    name: str
    target: str
    tokenizer: str
    stored: dict[str, Any]
    head: dict[str, Any]
    summary: list[str]
    diagnosis: Diagnosis
    lens: list[Lens] = field(default_factory=list)

    @property
    def advice(self) -> str:
        return advice(self.diagnosis)

    @property
    def bins(self) -> list[Bin]:
        return binned(self.diagnosis.loaded.guesses)

    def as_json(self) -> dict[str, Any]:
        diagnosis = self.diagnosis
        compared = [
            {
                "reading": one.other.name,
                "rates": one.foresight.rates,
                "gain": one.gain,
                "error": one.error if math.isfinite(one.error) else None,
                "z": one.evidence_z,
            }
            for one in diagnosis.first
        ]
        return {
            "drafter": self.name,
            "target": {"name": self.target, "tokenizer_hash": self.tokenizer},
            **self.stored,
            **self.head,
            "loaded": _rates(diagnosis.loaded),
            "readings": compared,
            "better": [one.other.name for one in diagnosis.steps],
            "best": _rates(diagnosis.best),
            "calibration": [one._asdict() for one in self.bins],
            "calibration_error": calibration_error(self.bins),
            "lens": [one._asdict() for one in self.lens],
            "advice": self.advice,
        }

    def as_text(self) -> str:
        """Return the report as text."""
        loaded, rounds, error = self.diagnosis.loaded, self.diagnosis.rounds, calibration_error(self.bins)
        known = f"{100 * loaded.known / max(1, loaded.places):.0f} % of the target's tokens are in the draft vocabulary"
        lines = [
            *self.summary,
            "",
            f"Teacher-forced from {loaded.places} positions of the target's greedy answers; {known}.",
            f"{'acceptance by depth':28}{_line(loaded)}   {loaded.accepted:.2f} accepted per chain of {loaded.depth}",
            f"{'at temperature 1':28}{loaded.overlap_rate:5.2f}   expected at depth 1",
        ]
        if error is not None:
            marks = "  ".join(f"{one.confidence:.2f}→{one.share:.2f}" for one in self.bins)
            lines.append(f"{'calibration':28}{error:5.2f}   mean gap between acceptance and confidence")
            lines.append(f"{'  confidence→accepted':28}{marks}")
        if taps := ", ".join(f"state {one.layer} {one.agreement:.2f}" for one in self.lens if one.tap):
            lines.append(f"{'logit lens at the taps':28}{taps}   predicts the final token")
        readings = "Alternative readings (acceptance by depth, change in accepted tokens per chain):"
        lines += ["", readings if rounds else "These heads have no alternative readings."]
        for number, compared in enumerate(rounds):
            if number:
                better = " and ".join(one.other.name for one in self.diagnosis.steps[:number])
                lines.append(f"With {better}, and in addition:")
            for one in compared[:3] if number else compared:
                mark = "  better" if one.clearly_better else ""
                lines.append(f"  {one.other.name:38}{_line(one.foresight)}   {one.gain:+.2f} ± {one.error:.2f}{mark}")
        return "\n".join([*lines, "", self.advice])

    def figures(self, theme: str = "light") -> dict[str, Any]:
        """Return Plotly figures by name: acceptance by depth, calibration and, if available, the logit lens."""
        rates = {"as loaded": self.diagnosis.loaded.rates}
        for one in (*self.diagnosis.steps, *self.diagnosis.first):
            rates.setdefault(f"with {one.other.name}", one.foresight.rates)
        places = self.diagnosis.loaded.places
        drawn = {
            "acceptance_by_depth": acceptance_of_readings(dict(list(rates.items())[:MOST]), places, theme),
            "calibration": of_bins(self.bins, theme),
        }
        return drawn | ({"logit_lens": logit_lens(self.lens, theme)} if self.lens else {})

    def draw(self, folder: Path) -> list[Path]:
        """Write the figures as self-contained HTML files and return the paths."""
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for name, figure in self.figures().items():
            files.append(folder / f"{name}.html")
            figure.write_html(files[-1], include_plotlyjs=True)
        return files


def _rates(stats: TeacherForcedStats) -> dict[str, Any]:
    return {"rates": stats.rates, "reached": stats.reached[:-1], "accepted": stats.accepted, "overlap": stats.overlap_rate,
            "places": stats.places, "known": stats.known}  # fmt: skip


def _line(stats: TeacherForcedStats) -> str:
    return "".join(f"{'–':>6}" if rate is None else f"{rate:6.2f}" for rate in stats.rates)


def inspect(
    name: str, target_name: str, prompts: tuple[str, ...], tokens: int, depth: int, lens_of_all: bool,
    progress: Progress, image: Any = None,
) -> Report:  # fmt: skip
    """Inspect the drafter ``name`` on a target.

    ``lens_of_all``: compute the logit lens of all layers, not only of the drafter's taps; ``image``: for vision-language targets.
    Raises ModelUnavailable, naming the tensor or setting at fault, if the drafter cannot be loaded.
    """
    check_room((target_name, *second_models(name)))
    opened: Any = open_target(target_name, prompts[0], tokens, image, progress)
    loaded, target = opened.loaded, opened.target
    fit = fit_of(loaded.name, target)
    stored, network, summary = _read(name, loaded, target, fit, progress)
    facts, lines = _facts(network)
    taps = network.config.taps if isinstance(network, Head) else (network.config.tap,)
    layers = tuple(range(fit.layers + 1)) if lens_of_all else required_layers(taps, fit.layers, ROUNDS)
    if image is not None:
        layers = tuple(sorted({EMBEDDINGS, *layers}))
    if isinstance(network, PublishedEagleHead) and network.config.queries:
        raise ModelUnavailable(
            f"{name} compresses an image into {network.config.queries} rows without prompt positions (ViSpec) and cannot be "
            "inspected. Compare a run with its baseline instead."
        )
    texts = list(passages(target_name, prompts, tokens, layers, image, progress))
    if isinstance(network, Head):
        rope = getattr(target.config, "rope_parameters", None) or {}
        sections = None if image is None else tuple(map(int, rope.get("mrope_section") or ()))
        theta = None if "rope_theta" not in rope else float(rope["rope_theta"])
        diagnosis = judge(Reading(network), texts, fit, depth, theta, report=progress, sections=sections)
    else:
        diagnosis = Diagnosis(teacher_force_parallel(network, texts, depth))
    seen = lenses(target, texts, layers if lens_of_all else taps, taps)
    return Report(name, loaded.name, loaded.tokenizer_hash, stored, facts, [*summary, *lines], diagnosis, seen)


def _read(
    name: str, loaded: LoadedText | LoadedVisionLanguage, target: Any, fit: Fit, progress: Progress
) -> tuple[dict[str, Any], Head | ParallelNet, list[str]]:
    """Return data on the files, the network, and report lines on the files. If loading fails, ``progress`` receives the
    lines.
    """
    if is_shipped(name):
        if name not in OWN:
            raise ModelUnavailable(f"{name} cannot be inspected; name a folder, a hub id, or one of {', '.join(OWN)}.")
        network = load_heads(name, None, loaded, target)
        network = network.as_head(name) if isinstance(network, EagleHead) else network
        return {"dialect": "of this project"}, network, [f"{name}, included in specviz, on {loaded.name}"]
    repository = open_repository(name)
    stored = drafting(repository)
    title, tensors, files = layout_of(stored).title, sorted(stored.files), []
    lines = [f"{name}: {title}, on {loaded.name} (tokenizer {loaded.tokenizer_hash[:12]})"]
    for file in sorted(set(stored.files.values())):
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        size = file.stat().st_size
        files.append({"name": file.name, "bytes": size, "sha256": digest})
        lines.append(f"  {file.name}  {size / 1e6:.1f} MB  sha256 {digest[:16]}…")
    lines.append(f"  {len(tensors)} tensors: {', '.join([*tensors[:4], *(['…'] if len(tensors) > 4 else [])])}")
    kind = layout_of(repository).method or "eagle3"
    if kind == "dream":
        raise ModelUnavailable(
            f"{name} is {title}, whose rows attend to all earlier hidden states, so readings cannot be compared. "
            "Compare a run with its baseline instead."
        )
    try:
        network = read(kind, repository, fit)
    except ModelUnavailable:
        for line in lines:
            progress(line, None)
        raise
    architectures = list(stored.config.get("architectures") or ())
    return {"dialect": title, "architectures": architectures, "files": files, "tensors": tensors}, network, lines


def _facts(network: Head | ParallelNet) -> tuple[dict[str, Any], list[str]]:
    """Return sizes, conventions and vocabulary of a loaded drafter, as plain data and as report lines."""
    if isinstance(network, ParallelNet):
        heads = network.config.heads
        return {"kind": "Medusa", "heads": heads, "notes": []}, [f"  {heads} heads on the target's last hidden state"]
    config, tensors = network.config, {**network.tensors, "lm_head.weight": network.head}
    zero = [name for name, value in tensors.items() if not bool(value.any())]
    odd = [f"{name} is all zeros: the tensor was not trained, or was lost in a conversion." for name in zero]
    facts: dict[str, Any] = {
        "kind": network.dialect,
        "sizes": {name: value for name, value in asdict(config).items() if name != "how"},
        "conventions": {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config.how).items()},
        "parameters": sum(value.numel() for value in network.tensors.values()),
        "bytes": network.parameter_bytes,
        "draft_vocabulary": len(network.head),
        "notes": [*network.notes, *odd],
    }
    vocabulary = "all of the target's" if network.draft_ids is None else f"{len(network.draft_ids)} of {config.vocab_size}"
    lines = [
        f"  {facts['parameters'] / 1e6:.1f} M parameters, {config.layers} layer{'s' if config.layers > 1 else ''} of "
        f"{config.hidden}, {config.heads} heads ({config.kv_heads} KV), taps {list(config.taps)}, RoPE base {config.how.theta:g}",
        f"  conventions: {unusual(network)}",
        f"  draft vocabulary: {vocabulary} tokens; no tensor missing, none unused",
        *(f"  note: {note}" for note in facts["notes"]),
    ]
    return facts, lines


def unusual(head: Head) -> str:
    """Describe the conventions that differ from those of the EAGLE-3 paper, or all conventions of a block drafter."""
    if isinstance(head, BlockFill):
        config = head.config
        causal = f"causal in layers {[number for number, one in enumerate(config.causal) if one]}" if any(config.causal) else ""
        more = {
            causal or "rows see their whole block": True,
            f"sliding windows {list(config.how.windows)}": bool(config.how.windows),
            f"convolutions over {config.conv_taps} rows": bool(config.conv_taps),
            f"a selector among {config.candidates}": bool(config.candidates),
            f"a {config.markov} Markov head of rank {config.rank}": bool(config.markov),
            "a confidence head": config.confidence,
        }
        rows = "each row predicts the next token" if config.from_anchor else "each mask predicts its own position"
        return ", ".join([f"blocks of {config.block} with mask {config.mask}", rows, *(word for word, on in more.items() if on)])
    how, plain = head.config.how, HeadConventions(head.config.taps)
    words = {
        "entry_norm": f"norm before the projection ({how.entry_norm})",
        "normed_residual": "residual after the norm",
        "feeds_normed": "feeds its normalised output back",
        "windows": f"sliding windows {list(how.windows)}",
        "sections": f"rotary rates by axis {list(how.sections)}{', interleaved' if how.sections_woven else ''}",
        "pictured": "the picture's own embeddings at its positions",
        "rates": "scaled rotary rates",
        "centred": "norms' weights stored as their difference from one",
    }
    changed = [word for name, word in words.items() if getattr(how, name) != getattr(plain, name)]
    if head.config.paired:
        changed.insert(0, "a projection of [norm of embedding; norm of state] enters a complete layer followed by a norm")
    elif not head.config.wide:
        changed.insert(0, "a projection of [embedding; state] enters the layer, whose output the target's head reads")
    return ", ".join(changed) if changed else "no norm before the projection, plain residual, feeds its plain output back"


@torch.inference_mode()
def lenses(target: CausalTarget, passages: Sequence[Passage], layers: Sequence[int], taps: Sequence[int]) -> list[Lens]:
    """Return the logit lens of each of ``layers``, or an empty list if the model has no final norm.

    The passages must include the states of ``layers``. ``taps``: the drafter's input layers.
    """
    norm, head = getattr(target.model.get_decoder(), "norm", None), matrix(target.model.get_output_embeddings())
    if norm is None:
        return []
    last = int(target.config.num_hidden_layers)
    found = []
    for layer in layers:
        ranks = []
        for passage in passages:
            heed()
            states = passage.states[layer][passage.first - 1 : -1]
            logits = F.linear(norm(states) if layer < last else states, head)
            final = passage.logits.argmax(-1, keepdim=True)
            ranks.append(1 + (logits > logits.gather(1, final)).sum(-1))
        together = torch.cat(ranks).float()
        found.append(Lens(layer, float((together == 1).float().mean()), float(together.median()), layer in taps))
    return found
