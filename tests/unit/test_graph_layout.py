"""Graphs are laid out in layers: nothing overlaps, lines lead right, and large groups are folded."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from penstock.core.flow import NodeState
from penstock.core.job import Ref
from penstock.inspector import GraphNode
from penstock.web.dashboard.flow_drawing import boxes_of, drawn, shares, short
from penstock.web.dashboard.graph_layout import Layout, Sizes, layered

SIZES = Sizes()
DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]


def crossings(found: Layout) -> int:
    spans = [pair for line in found.lines.values() for pair in pairwise(line)]
    return sum(
        one[0][0] == other[0][0] and (one[0][1] - other[0][1]) * (one[1][1] - other[1][1]) < -1e-6
        for n, one in enumerate(spans)
        for other in spans[:n]
    )


@pytest.mark.parametrize(
    ("count", "edges", "ranks"),
    [
        (0, [], []),
        (1, [], [0]),
        (3, [(0, 1), (1, 2)], [0, 1, 2]),
        (4, DIAMOND, [0, 1, 1, 2]),
        (4, [(0, 1), (1, 2), (3, 2)], [0, 1, 2, 1]),  # 3 stands right before its successor
        (3, [(0, 1), (1, 2), (0, 2)], [0, 1, 2]),  # the longest path counts
        (3, [(0, 1), (1, 2), (2, 0), (1, 1), (0, 9), (-1, 0)], [0, 1, 2]),  # a circle, and nonsense
    ],
)
def test_a_box_stands_in_the_rank_of_its_longest_path(
    count: int, edges: list[tuple[int, int]], ranks: list[int]
) -> None:
    assert layered(count, edges).ranks == ranks


def test_a_diamond_is_symmetric_and_a_chain_straight() -> None:
    found = layered(4, DIAMOND)
    assert found.y[0] == found.y[3] == (found.y[1] + found.y[2]) / 2
    assert len({round(y, 6) for y in layered(4, [(0, 1), (1, 2), (2, 3)]).y}) == 1


def test_lines_do_not_cross_where_they_need_not() -> None:
    assert crossings(layered(6, [(0, 4), (1, 3), (2, 5), (0, 5)])) == 0


@pytest.mark.parametrize("seed", range(6))
def test_boxes_never_overlap_and_lines_lead_right(seed: int) -> None:
    rolled = random.Random(seed)
    count = rolled.randrange(2, 120)
    edges = [(rolled.randrange(count), rolled.randrange(count)) for _ in range(rolled.randrange(3 * count))]
    found = layered(count, edges)
    assert found == layered(count, edges)
    for rank in set(found.ranks):
        middles = sorted(found.y[n] for n in range(count) if found.ranks[n] == rank)
        gaps = [after - before for before, after in pairwise(middles)]
        assert min(gaps, default=99) >= SIZES.height + SIZES.between - 1e-6
    for (start, end), line in found.lines.items():
        ranks = [rank for rank, _ in line]
        assert ranks[0] == found.ranks[start] < ranks[-1] == found.ranks[end]
    assert min(found.y) >= SIZES.height / 2 - 1e-6
    assert max(found.y) <= found.height - SIZES.height / 2 + 1e-6


def test_the_ways_of_long_lines_are_bounded() -> None:
    chain = [(n, n + 1) for n in range(199)]
    found = layered(200, [*chain, *((n, 199) for n in range(190))])
    assert sum(map(len, found.lines.values())) < 2_500


# ── folded groups ────────────────────────────────────────────────────────────────────────────────


def node(n: int, *after: int, task: str = "fetch", state: str = "completed") -> GraphNode:
    job = None if task == "join" else Ref("q", f"j{n}")
    return GraphNode(index=n, state=NodeState(state), task=task, job=job, next=after, stored=None)


def chord_of_chains(members: int, dead: int = -1) -> list[GraphNode]:
    """Chains of two, and a join behind them."""
    join, made = 2 * members, []
    for n in range(members):
        made.append(node(2 * n, 2 * n + 1))
        state = "dead" if n == dead else "completed"
        made.append(node(2 * n + 1, join, task="parse", state=state))
    return [*made, node(join, task="join")]


def test_a_large_group_is_folded_branch_by_branch_and_shows_what_failed() -> None:
    nodes = chord_of_chains(54, dead=40)
    graph = boxes_of(nodes)
    more = [box for box in graph.boxes if box.branches]
    assert [(box.branches, len(box.nodes)) for box in more] == [(49, 98)]
    assert {80, 81} <= {box.first.index for box in graph.boxes if not box.branches}
    assert len(graph.boxes) == 5 * 2 + 1 + 1
    assert sorted(one.index for box in graph.boxes for one in box.nodes) == list(range(109))
    assert not graph.opened
    unfolded = boxes_of(nodes, {more[0].first.index})
    assert (len(unfolded.boxes), unfolded.opened) == (109, True)


def test_small_groups_and_branches_that_differ_are_shown_in_full() -> None:
    assert len(boxes_of(chord_of_chains(6)).boxes) == 13
    nodes = [node(n, 20, task=f"task{n}") for n in range(20)]
    assert len(boxes_of([*nodes, node(20)]).boxes) == 21


def test_members_before_a_join_that_is_not_read_are_folded_too() -> None:
    graph = boxes_of([node(n, 10_000) for n in range(200)])
    assert [box.branches for box in graph.boxes] == [0] * 5 + [195]


def test_the_picture_of_a_folded_group_links_to_it_in_full() -> None:
    picture = drawn(
        boxes_of(chord_of_chains(54)), lambda one: f"/{one.index}", lambda n: f"?open={n}", lambda _: ""
    )
    (more,) = [box for box in picture.boxes if box.kind == "more"]
    assert (more.name, more.says, more.link) == ("49 more branches", "98 completed", "?open=10")
    assert [box.width for box in picture.boxes if box.kind == "join"] == [58]
    assert all(done for _, done in picture.lines)
    assert all(0 <= box.x <= picture.width for box in picture.boxes)


def test_all_names_of_a_picture_have_their_module_or_none_has() -> None:
    tasks = ("shop.count", "shop.import_the_catalogue")
    for shown in (["shop.count"], ["count", "import_the_catalog…"]):
        nodes = [node(n, task=tasks[n]) for n in range(len(shown))]
        picture = drawn(boxes_of(nodes), lambda _: "", lambda _: "", lambda _: "")
        assert [box.name for box in picture.boxes] == shown


def test_long_names_keep_their_end_and_bars_fill_their_width() -> None:
    assert short("tasks.send") == "tasks.send"
    assert short("shop.orders.tasks.send_welcome") == "send_welcome"
    assert short("x" * 50) == "x" * 18 + "…"
    assert [(one.x, one.width) for one in shares({"completed": 1, "dead": 3})] == [(0, 25), (25, 75)]
