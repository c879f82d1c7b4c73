"""Pairs of a published target and published heads for it: sizes, memory, and the commands that run them. No torch.

Sizes are worked out from the shapes in the trainers' own configurations (SpecForge, AngelSlim, speculators), at two bytes a
parameter; none of these pairs has run in this project yet, as ``status`` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specviz.models.hub.catalog import IMAGE, TARGET, VISION, Entry, HubRepository, entries

FLAT, SPECULATORS, NARROW, MTP = "flat", "speculators", "EAGLE-1/2", "MTP"
MSD, VISPEC, DREAM, LANTERN, LLAMAGEN = "MSD", "ViSpec", "DREAM", "LANTERN", "LANTERN for LlamaGen"
PICTURE = "assets/images/scenes/donuts-tiger.png"
"""A picture that ships, for targets that read pictures."""
_TAPS, _QUERIES = 3, 2


@dataclass(frozen=True)
class HeadShape:
    """What decides a head's size. ``vocab`` counts only where the head brings an embedding of its own; ``biased`` says whether
    queries, keys and values have biases."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_size: int
    draft_vocab: int
    vocab: int = 0
    biased: bool = False

    def parameters(self, layout: str) -> int:
        """How many numbers it stores."""
        if layout == MTP:
            return self._gated_layer()
        if layout == DREAM:
            return self._crossing
        wide = layout in (FLAT, SPECULATORS)
        entering = (2 if wide else 1) * self.hidden
        attention = (self.heads + 2 * self.kv_heads) * self.head_size * entering + self.heads * self.head_size * self.hidden
        projection = (_TAPS if wide else 2) * self.hidden * self.hidden + (0 if wide else self.hidden)
        attention += (self.heads + 2 * self.kv_heads) * self.head_size * self.biased
        norms = (4 if wide else 1) * self.hidden
        if layout == LANTERN:  # a Chameleon layer: a norm on its input too, and layer norms of queries and keys by head
            norms += self.hidden + 2 * (self.heads + self.kv_heads) * self.head_size
        seeing = self._compressing if layout == VISPEC else 0
        words = (self.draft_vocab + self.vocab) * self.hidden
        return projection + attention + 3 * self.hidden * self.inner + norms + words + seeing

    @property
    def _compressing(self) -> int:
        """Learned queries, their attention, and the mixing of the last answer into states."""
        square = self.hidden * self.hidden
        return (_QUERIES + 1 + 2 * self.biased) * self.hidden + 5 * square

    @property
    def _crossing(self) -> int:
        """Two decoder layers, a gated cross-attention between them, and a norm behind all."""
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_size * self.hidden
        return 3 * (attention + 3 * self.hidden * self.inner) + 6 * self.hidden + 2 * self.head_size + 2

    def _gated_layer(self) -> int:
        """Of Qwen3.5's MTP layer: two norms and a projection before a whole layer with a gate on its attention, a norm behind."""
        attention = (3 * self.heads + 2 * self.kv_heads) * self.head_size * self.hidden + 2 * self.head_size
        return 2 * self.hidden * self.hidden + attention + 3 * self.hidden * self.inner + 5 * self.hidden


@dataclass(frozen=True)
class Pair:
    """A target of the catalogue and a repository with heads for it. ``pickled`` heads are a torch zip and want converting; an MTP
    layer lies in the target's own repository and is fetched with it. ``number_bytes`` are those of a number as it is stored.
    A target that is put together of several repositories is a folder, ``own`` its card and ``gather`` what to type for it."""

    target: str
    heads: str
    method: str
    layout: str
    shape: HeadShape
    pickled: bool = False
    number_bytes: int = 2
    run_on: str = ""
    note: str = ""
    own: Entry | None = None
    gather: tuple[str, ...] = ()

    @property
    def entry(self) -> Entry:
        """The target as the catalogue has it, or its own card."""
        if self.own is not None:
            return self.own
        return next(entry for entry in entries() if entry.name == self.target)

    @property
    def head_bytes(self) -> int:
        """About what the heads download, in bytes."""
        return self.number_bytes * self.shape.parameters(self.layout)

    @property
    def memory(self) -> int:
        """Bytes that both take in bfloat16, the cache of the text aside."""
        return 2 * (self.entry.parameters + self.shape.parameters(self.layout))

    @property
    def status(self) -> str:
        """Whether anybody has run the pair through this project."""
        return f"Run on {self.run_on}." if self.run_on else "Nobody has run this pair here yet."

    @property
    def commands(self) -> tuple[str, ...]:
        """What to type, in this order: fetch, look whether the heads are read right where that can be told, run beside the
        plain run."""
        folder = self.heads.split("/")[1]
        fetch = self.gather or (f"python -m specviz fetch {self.target}",)
        draft = self.target if self.layout == MTP else self.heads
        if self.pickled:
            fetch += (f"hf download {self.heads} --local-dir {folder}", f"python -m specviz convert {folder}/pytorch_model.bin")
            draft = f"{folder}-safetensors"
        asked, shown = '--prompt "Explain how rain forms, step by step." --baseline', ""
        if self.entry.modality == VISION:
            asked, shown = f'--image {PICTURE} --prompt "Describe the picture." --baseline', f" --image {PICTURE}"
        if self.entry.modality == IMAGE:
            asked = '--prompt "A red fox in the snow." --baseline'
        inspected = (
            ()
            if self.layout in (VISPEC, DREAM, LANTERN, LLAMAGEN)
            else (f"python -m specviz inspect {draft} --target {self.target}{shown}",)
        )
        if self.layout == MTP:
            asked = f"--param width=1 --param depth=3 --param nodes=3 {asked}"  # a chain, as engines draft with it
        return (
            *fetch,
            *inspected,
            f"python -m specviz run --method {self.method} --target {self.target} --draft {draft} {asked}",
        )


_LLAMA: Any = {"hidden": 4096, "inner": 14336, "heads": 32, "kv_heads": 8, "head_size": 128}
_QWEN: Any = {"heads": 32, "kv_heads": 8, "head_size": 128, "draft_vocab": 32000}
_QWEN_8B: Any = {**_QWEN, "hidden": 4096, "inner": 12288}
_VICUNA: Any = {"hidden": 4096, "inner": 11008, "heads": 32, "kv_heads": 32, "head_size": 128, "draft_vocab": 0}
_OWN = "Its own MTP layer, in the target's files: three of its tokens as a chain; leave the parameters out for a tree."
_BASE = "rope_theta of its trainer is told by `inspect`, which tries base 10000 too."


def _llamagen(stage: str, drafter: str, grid: int) -> Pair:
    """A stage of LlamaGen's text-conditional XL with LANTERN's drafter; the VQ tokenizer is its authors' torch zip."""
    folder, parts = f"./{stage}", 777_923_840 + 1_223_527_424 + 42_583_171  # decoder, T5's encoder, pixel decoder
    note = f"{grid} x {grid} codes, {16 * grid} pixels; the decoder of 0.8, T5's encoder of 1.2 billion parameters."
    card = Entry(
        name=folder, title=stage, modality=IMAGE, roles=(TARGET,), source=HubRepository(f"jadohu/{stage}", 3_110_000_000),
        family="llamagen", parameters=parts, licence="MIT", note=note,
    )  # fmt: skip
    gather = (
        f"hf download jadohu/{stage} --local-dir {stage}",
        f'hf download google/flan-t5-xl --include "*.json" "*.safetensors" --local-dir {stage}/t5',
        "hf download peizesun/llamagen_t2i vq_ds16_t2i.pt --local-dir llamagen_t2i",
        f"python -m specviz convert llamagen_t2i/vq_ds16_t2i.pt --out {stage}/vq",
    )
    said = "By LANTERN's authors; draws pictures asked for by captions. flan-t5-xl downloads another 11.4 GB, its decoder too."
    shape = HeadShape(1280, 3584, 20, 20, 64, 0, 16384)
    return Pair(
        folder, f"jadohu/{drafter}", "lantern_pp", LLAMAGEN, shape, pickled=True, number_bytes=4, note=said, own=card,
        gather=gather,
    )  # fmt: skip


PAIRS = (
    Pair("llama-3.1-8b-instruct", "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3", "eagle3", SPECULATORS,
         HeadShape(**_LLAMA, draft_vocab=32000, vocab=128256), note="The example of vLLM's own documentation."),
    Pair("llama-3.1-8b-instruct", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "eagle3", FLAT, HeadShape(**_LLAMA, draft_vocab=32000),
         pickled=True, note="By EAGLE's authors."),
    Pair("llama-3.1-8b-instruct", "yuhuili/EAGLE-LLaMA3.1-Instruct-8B", "eagle2", NARROW, HeadShape(**_LLAMA, draft_vocab=0),
         pickled=True, note="By EAGLE's authors; EAGLE-1 and EAGLE-2 share it."),
    Pair("qwen3-1.7b", "AngelSlim/Qwen3-1.7B_eagle3", "eagle3", FLAT,
         HeadShape(2048, 6144, 16, 8, 128, 32000), note=_BASE),
    Pair("qwen3.5-0.8b", "Qwen/Qwen3.5-0.8B", "eagle2", MTP, HeadShape(1024, 3584, 8, 2, 256, 0), note=_OWN),
    Pair("qwen3.5-2b", "Qwen/Qwen3.5-2B", "eagle2", MTP, HeadShape(2048, 6144, 8, 2, 256, 0), note=_OWN),
    Pair("qwen3-4b", "AngelSlim/Qwen3-4B_eagle3", "eagle3", FLAT, HeadShape(**_QWEN, hidden=2560, inner=9728), note=_BASE),
    Pair("qwen3-8b", "AngelSlim/Qwen3-8B_eagle3", "eagle3", FLAT, HeadShape(**_QWEN_8B), note=_BASE),
    Pair("qwen3-8b", "RedHatAI/Qwen3-8B-speculator.eagle3", "eagle3", SPECULATORS, HeadShape(**_QWEN_8B, vocab=151936)),
    Pair("qwen2.5-vl-7b-instruct", "Rayzl/qwen2.5-vl-7b-eagle3-sgl", "eagle3", FLAT,
         HeadShape(3584, 18944, 28, 4, 128, 32000),
         note="Reads pictures; three positions a token (mrope), the placeholder's embedding at the picture's places."),
    Pair("qwen2.5-vl-7b-instruct", "JLKang/ViSpec-Qwen2.5-VL-7B-Instruct", "eagle2", VISPEC,
         HeadShape(3584, 18944, 28, 28, 128, 0, 152064, biased=True), note="By ViSpec's authors; reads pictures."),
    Pair("llava-1.6-7b", "JLKang/ViSpec-llava-v1.6-vicuna-7b-hf", "eagle2", VISPEC, HeadShape(**_VICUNA, vocab=32064),
         note="By ViSpec's authors; reads pictures."),
    Pair("llava-1.6-7b", "HideonBed12138/DREAM-llava-v1.6-vicuna-7b", "dream", DREAM, HeadShape(**_VICUNA), pickled=True,
         note="By DREAM's authors; add --param keep=1 for the release's unpruned picture."),
    Pair("llava-1.5-7b", "lucylyn/MSD-LLaVA1.5-7B", "eagle2", MSD, HeadShape(**_VICUNA, vocab=32000), pickled=True,
         note="By MSD's authors; reads pictures."),
    Pair("anole-7b", "jadohu/anole_drafter", "lantern_pp", LANTERN,
         HeadShape(4096, 11008, 32, 32, 128, 0, 65536), number_bytes=4, note="By LANTERN's authors; draws pictures."),
    _llamagen("LlamaGen-T2I", "llamagen_drafter", 16),
    _llamagen("LlamaGen-T2I-2", "llamagen2_drafter", 32),
)  # fmt: skip
"""Pairs in both layouts of EAGLE-3 and in EAGLE-1's, smallest downloads within a target first, and targets that draft for
themselves."""
