"""The benchmark's graphs are real blocks, its rows are complete, and time grows with the graph."""

from __future__ import annotations

from mixbackend.benchmarks.captured_blocks import captured_blocks, repeated
from mixbackend.benchmarks.partitioner import run


def test_blocks_are_captured_whole_and_repeat() -> None:
    blocks = captured_blocks()
    assert [block.name for block in blocks] == ["bert", "resnet", "t5_decoder", "densenet"]
    op_graph = repeated(blocks, 600)
    names = [node.name for node in op_graph.nodes]
    assert len(names) == len(set(names)) and 450 <= len(op_graph.placed_nodes) <= 750
    shared = [item.name for item in op_graph.inputs if item.name.endswith("_t5_decoder")]
    assert len(shared) == 4


def test_rows_are_complete_and_plans_near_the_bound() -> None:
    rows = run([200, 900])
    for row in rows:
        assert {"nodes", "backends", "seconds", "optimal", "regions", "stages"} <= set(row)
        assert row["backends"] == 5 and row["search"] == "exact" and row["width"] <= 12
        assert row["bound_gap"] <= 0.05 * row["estimated_s"]
        assert sum(row["nodes_by_backend"].values()) == row["nodes"]
        assert set(row["stages"]) == {"judge", "match", "price", "search", "single", "assemble"}
    assert rows[0]["nodes"] < rows[1]["nodes"]
