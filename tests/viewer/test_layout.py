"""Where the tree's nodes go: nothing overlaps, big trees shrink, then collapse, long chains turn at the row's end."""

import pytest

from tests.support.viewer import cases
from tests.support.viewer.layouts import drawn, overlaps

SMALL = [
    cases.node(-1, " a", "root"), cases.node(0, " b", "accepted", 0.6, 0.7), cases.node(0, " c", "rejected", 0.2, 0.1),
    cases.node(1, " d", "rejected", 0.3, 0.1), cases.node(2, " e", "skipped", 0.4),
]  # fmt: skip


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("step", "room"),
    [
        (cases.step(0, SMALL, [1], [1, 9, " f", 0.5, "residual"]), {}),
        (cases.bushy(0), {}),
        (cases.bushy(1), {"height": 700}),
        (cases.bushy(2), {"width": 360, "height": 300}),
        (cases.chain(0), {}),
        (cases.chain(1, kept=13), {"width": 500}),
        (cases.chain(2, kept=0), {"width": 380}),
        (cases.wide(), {}),
        (cases.hostile(), {"width": 360}),
    ],
)
def test_no_node_covers_another(node, step, room):
    made = drawn(node, step, **room)
    assert overlaps(made["items"]) == []
    for item in made["items"]:
        assert item["x"] >= 0 and item["x"] + item["w"] <= made["width"] + 1
        assert item["y"] - item["h"] / 2 >= 0 and item["y"] + item["h"] / 2 <= made["height"] + 1


def test_the_accepted_path_is_one_straight_line(node):
    made = drawn(node, cases.bushy(1), height=500)
    path = [item for item in made["items"] if item["on"] or item["id"] == 0]
    assert len(path) == 4
    assert len({item["y"] for item in path}) == 1


def test_a_small_tree_is_written_out_in_full(node):
    made = drawn(node, cases.step(0, SMALL, [1], [1, 9, " f", 0.5, "target"]))
    assert made["form"] == "full"
    assert {item["label"] for item in made["items"]} == {"·a", "·b", "·c", "·d", "·e", "·f"}


def test_a_huge_tree_is_collapsed_with_counts_that_add_up(node):
    step = cases.wide()
    made = drawn(node, step)
    assert len(made["items"]) <= 400
    hidden = sum(item["hidden"] or 0 for item in made["items"])
    shown = sum(item["kind"] == "node" for item in made["items"])
    assert hidden and shown + hidden == len(step["nodes"])
    assert {item["label"] for item in made["items"] if item["kind"] == "chip"} == {
        f"+{item['hidden']}" for item in made["items"] if item["kind"] == "chip"
    }


def test_opening_a_count_shows_what_it_hid(node):
    body = """
    const step = parseStep(given);
    const chosen = (opened) => [...layout.choose(step, 400, new Set(opened)).items.values()];
    const count = (opened) => chosen(opened).filter((item) => item.parent === 2).length;
    return [count([]), count([2])];
    """
    before, after = node(body, cases.wide())
    assert after == 30 > before


def test_a_long_chain_turns_at_the_end_of_its_row(node):
    made = drawn(node, cases.chain(0), width=700)
    assert made["form"] == "bands"
    assert made["width"] <= 701
    rows = sorted({round(item["y"]) for item in made["items"] if item["kind"] == "node"})
    assert len(rows) >= 2
    bonus = next(item for item in made["items"] if item["kind"] == "bonus")
    beside = next(item for item in made["items"] if item["id"] == 9)
    assert bonus["x"] == beside["x"] and bonus["y"] > beside["y"]


def test_a_deep_tree_with_few_branches_is_cut_into_bands_that_fit(node):
    """A path of forty tokens, a branch of three beside every fifth of them."""
    nodes, path = [cases.node(-1, " a", "root")], [0]
    for _ in range(40):
        nodes.append(cases.node(path[-1], " word", "accepted", 0.6, 0.7))
        path.append(len(nodes) - 1)
        if len(path) % 5 == 0:
            nodes.append(cases.node(path[-2], " other", "rejected", 0.2, 0.1))
            nodes += [cases.node(len(nodes) - 1 + place, " more", "skipped", 0.4) for place in range(2)]
    made = drawn(node, cases.step(0, nodes, path[1:], [path[-1], 9, " f", 0.5, "target"]), width=712, height=420)
    assert (made["form"], made["width"], made["height"]) == ("bands", 712, 420)
    assert overlaps(made["items"]) == []
    by_id = {item["id"]: item for item in made["items"]}
    assert [by_id[one]["label"] for one in path[1:]] == ["·word"] * 40
    rows = [by_id[one]["y"] for one in path]
    assert rows == sorted(rows) and 3 <= len(set(rows)) <= 6, "the path runs straight within a band"
    for parent, child, drawn_path in made["edges"]:
        assert (by_id[child]["x"] < by_id[parent]["x"]) == ("V" in drawn_path), "a turn where a band ends, and only there"


@pytest.mark.spread(2)
@pytest.mark.parametrize("index", range(6))
def test_eighty_nodes_fit_a_small_projector(node, index):
    made = drawn(node, cases.bushy(index), width=712, height=244)
    assert (round(made["width"]), round(made["height"])) == (712, 244)
    judged = [item for item in made["items"] if item["on"] or item["kind"] == "bonus"]
    assert judged and all(item["label"] and item["form"] == "full" for item in judged)
    assert overlaps(made["items"]) == []


def test_every_drawn_node_hangs_from_a_drawn_parent(node):
    made = drawn(node, cases.wide())
    ids = {item["id"] for item in made["items"]}
    assert len(made["edges"]) == len(ids) - 1
    for parent, child, path in made["edges"]:
        assert parent in ids and child in ids
        assert path.startswith("M") and "NaN" not in path


def pruned(many, kept=30):
    """A bushy step of which ``many`` leaves were pruned before the pass."""
    nodes = [cases.node(-1, " a", "root"), cases.node(0, " yes", "accepted", 0.6, 0.8)]
    nodes += [cases.node(0, f" no{at}", "rejected", 0.1, 0.01) for at in range(4)]
    nodes += [cases.node(2 + at % 4, f" k{at}", "skipped", 0.2) for at in range(kept)]
    nodes += [cases.node(1 + at % 5, f" p{at}", "pruned", 0.01) for at in range(many)]
    return cases.step(0, nodes, [1], [1, 9, " end", 0.5, "target"])


def test_many_pruned_nodes_become_one_count_where_they_would_take_the_others_words(node):
    made = drawn(node, pruned(90), width=700, height=330)
    chips = [item for item in made["items"] if item["kind"] == "chip"]
    assert [(chip["label"], chip["hidden"], chip["parent"]) for chip in chips] == [("90 pruned", 90, 0)]
    assert not any(item["label"].startswith("·p") for item in made["items"])
    assert overlaps(made["items"]) == []


def test_a_few_pruned_nodes_stay_in_their_places(node):
    made = drawn(node, pruned(6, kept=8), width=700, height=330)
    assert sum(item["kind"] == "chip" for item in made["items"]) == 0
    assert len(made["items"]) == 6 + 8 + 6 + 1


def test_asking_for_the_pruned_shows_them_all(node):
    body = """
    const step = parseStep(given);
    const opened = new Set(["pruned"]);
    const made = layout.tree(step, room({ opened }));
    return [...made.items.values()].filter((item) => item.kind === "node").length;
    """
    step = pruned(90)
    assert node(body, step) == len(step["nodes"])


def test_the_method_s_own_story_comes_before_that_of_the_growth(node):
    body = """
    const shown = (types, selectedNote) =>
      noteRegistry.chosen({ step: { notes: types.map((type) => ({ type })) }, selectedNote });
    const both = ["growth", "beam_mass"];
    return [shown(both, null), shown(both, "growth"), shown(["growth"], "beam_mass"), shown([], null)];
    """
    found = node(body)
    assert [one and one["type"] for one in found] == ["beam_mass", "growth", "growth", None]


@pytest.mark.parametrize(("nodes", "height"), [(63, 340), (63, 97), (128, 340), (128, 97)])
def test_a_crowded_tree_is_grouped_so_that_all_its_text_can_be_read(node, nodes, height):
    """Rejected siblings, half of them with branches, at the root and below the accepted node."""
    drafted = [cases.node(-1, " a", "root"), cases.node(0, " yes", "accepted", 0.6, 0.8)]
    for at in range(nodes - 1):
        parent = 0 if at % 3 else 1
        rejected = at < 40
        of = (parent, f" no{at}", "rejected", 0.1, 0.01) if rejected else (at - 38, f" k{at}", "skipped", 0.2)
        drafted.append(cases.node(*of))
    step = cases.step(0, drafted, [1], [1, 9, " end", 0.5, "target"])
    body = """
    const step = parseStep(given.step), frame = room(given.room);
    const one = ({ id, kind, label, x, y, w, h, hidden, node }) => ({ id, kind, label, x, y, w, h, hidden, parent: node.parent });
    const told = (made) => [made.grouped || false, [...made.items.values()].map(one)];
    const ways = [{}, { whole: true }, { focus: 5 }, { opened: new Set([0]) }];
    return ways.map((way) => told(layout.tree(step, { ...frame, ...way })));
    """
    usual, whole, near, opened = node(body, {"step": step, "room": {"width": 612, "height": height}})
    for grouped, items in (usual, near, opened):
        assert grouped and all(item["label"] for item in items) and overlaps(items) == []
        assert sum(item["kind"] == "node" or item["hidden"] for item in items) >= 3
        assert sum(item["hidden"] + (item["kind"] == "node") for item in items) == len(drafted), "counts add up"
    assert not whole[0] and sum(item["kind"] == "node" for item in whole[1]) == len(drafted), "zoomed out, the whole shape"
    beside = [sum(item["kind"] == "node" and item["parent"] == drafted[5][0] for item in items) for _, items in (usual, near)]
    assert beside[1] >= beside[0], "first the siblings of the node in focus"
    assert {item["id"] for item in opened[1]} >= {at for at, one in enumerate(drafted) if one[0] == 0}


@pytest.mark.parametrize("height", [340, 97])
def test_a_crowded_tree_can_be_read_before_it_is_judged_too(node, height):
    nodes = [cases.node(-1, " a", "root"), *(cases.node(at // 4, f" guess{at}", "skipped") for at in range(80))]
    made = drawn(node, cases.step(0, nodes, [], None), width=612, height=height)
    assert all(item["label"] for item in made["items"]) and overlaps(made["items"]) == []
    assert sum(item["hidden"] + (item["kind"] == "node") for item in made["items"]) == len(nodes)
