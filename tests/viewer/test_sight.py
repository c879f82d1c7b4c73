"""What can be seen: every recorded tree whole in its frame, marks on pictures of any colour, the node that is explained."""

import re

import pytest

from specviz import palette
from specviz.trace import store
from specviz.viewer import bundle
from tests.support.traces.recordings import RECORDINGS, name, run_line

QUICK = ("mulo_sd",)
FRAMES = {
    "text": (700, 110, 1), "text beside a note": (560, 150, 1), "pair": (470, 68, 1), "phone": (350, 338, 1),
    "large": (950, 400, 1.2), "picture": (238, 300, 1), "large picture": (300, 520, 1.2),
}  # fmt: skip
READ = """
const taken = feed({});
taken.accept(given.text);
const { trace } = taken;
"""


def text(path):
    return "".join(line + "\n" for line in store.lines(store.read(path)))


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if name(path) in QUICK else pytest.mark.slow, id=name(path)) for path in RECORDINGS],
)
def test_every_recorded_tree_fits_its_frame_and_names_its_path(node, path):
    body = (
        READ
        + """
    const found = [];
    const patched = modules["kit/codes"].patched(modules["kit/codes"].of(trace.run));
    for (const [frame, [width, height, u]] of Object.entries(given.frames))
      for (const step of trace.steps.filter(({ index }) => index % 3 === 0)) {
        const made = layout.tree(step, { ...room({ width, height, u }), opened: new Set(), patched });
        const unnamed = step.path.filter((id) => !made.items.get(id).label && !(patched && patched(step.nodes[id])));
        const fits = made.width <= width + 1 && made.height <= height + 1;
        if (!fits || unnamed.length) found.push([frame, step.index, made.width, made.height, unnamed]);
      }
    return found;
    """
    )
    assert node(body, {"text": text(path), "frames": FRAMES}) == []


@pytest.mark.spread(1)
@pytest.mark.parametrize("path", [path for path in RECORDINGS if run_line(path)["exactness"] == "relaxed"], ids=name)
def test_a_relaxed_run_opens_at_a_relaxed_node_where_it_has_one(node, path):
    trace = store.read(path)
    relaxed = [[id for id in step.path if step.nodes[id].status == "relaxed"] for step in trace.steps]
    body = (
        READ
        + """
    const { opening, nodeToExplain } = modules["stage/attention"];
    return [opening(trace), trace.steps.map(nodeToExplain)];
    """
    )
    at, nodes = node(body, {"text": text(path)})
    assert len(relaxed[at]) == max(map(len, relaxed)) and (at == 0 or len(relaxed[at]) > 0)
    for explained, among, step in zip(nodes, relaxed, trace.steps, strict=True):
        assert explained in among if among else explained == (step.path[-1] if step.path else "bonus" if step.bonus else 0)


def test_any_other_run_opens_at_its_beginning(node):
    path = next(path for path in RECORDINGS if name(path) == "eagle3_list")
    assert node(READ + 'return modules["stage/attention"].opening(trace);', {"text": text(path)}) == 0


# Machado, Oliveira and Fernandes (2009), severity 1.
DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881))
PICTURES = ["#e69f00", "#fcd34d", "#0072b2", "#ffffff", "#000000", "#d92d20", "#888888"]


def linear(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)


def seen(colour, blind):
    red, green, blue = linear(colour)
    rows = DEUTERANOPIA if blind else ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    return tuple(min(1.0, max(0.0, row[0] * red + row[1] * green + row[2] * blue)) for row in rows)


def contrast(one, other, blind):
    low, high = sorted(
        0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in (seen(one, blind), seen(other, blind))
    )
    return (high + 0.05) / (low + 0.05)


def darkened(colour):
    """As the style sheet mixes a verdict's colour with black."""
    sheet = (bundle.HERE / "stage/picture.css").read_text(encoding="utf-8")
    (share,) = set(re.findall(r"color-mix\(in srgb, var\(--sv-[a-z]+\) (\d+)%, black\)", sheet))
    return "#" + "".join(f"{round(int(colour[at : at + 2], 16) * int(share) / 100):02x}" for at in (1, 3, 5))


@pytest.mark.parametrize("blind", [False, True], ids=["", "deuteranopia"])
@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("mark", ["accepted", "relaxed_ink", "resampled", "bonus", "rejected", "focus"])
def test_a_mark_or_its_edge_stands_out_from_any_picture(mark, picture, blind):
    """A mark lies on an edge in the paper's colour: one of the two differs from the picture, and they from each other."""
    core, edge = darkened(getattr(palette.LIGHT, mark)), palette.LIGHT.paper
    assert max(contrast(core, picture, blind), contrast(edge, picture, blind)) >= 3
    assert contrast(core, edge, blind) >= 3


def test_a_phone_reads_text_first_and_pictures_never(node):
    body = """
    const reads = (modality, more) => modules["stage/attention"].reads(
      { reading: null, table: false, size: "phone", options: {}, trace: { run: { modality } }, ...more });
    const kinds = ["text", "vision_language", "image"];
    const ways = [{}, { size: "wide" }, { options: { autoplay: false } }, { reading: false }, { size: "wide", reading: true }];
    return ways.map((way) => kinds.map((kind) => reads(kind, way)));
    """
    no = [False] * 3
    assert node(body) == [[True, True, False], no, no, no, [True, True, False]]
