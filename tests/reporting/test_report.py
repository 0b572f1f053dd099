"""The report: its stable dictionary, its tables, its events."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import draws

from mixbackend.contracts import NodeMatch, Plan, PlannedRegion, Preference, Refusal
from mixbackend.host.behind_budget import WorkBehind
from mixbackend.host.behind_orders import UNPAID
from mixbackend.registry import BackendInfo
from mixbackend.reporting import EVENT_KINDS, Event, EventLog, GraphRecord, Report
from mixbackend.reporting import summary as shorten
from mixbackend.reporting.folding import fold_events, repeated_regions, similar_regions
from mixbackend.reporting.records import RegimeRecord, RegionRecord
from mixbackend.reporting.trials import TrialRecord, TuningRecord

EVENT = Event("repair", "inference-0", "r0", "onnxruntime", "placed again")


def test_ranges_of_sizes_are_listed_with_their_plans(record: GraphRecord) -> None:
    ranges = (RegimeRecord("s0", 0, 99, 16, True, record), RegimeRecord("s0", 100, None, 1024, False, record))
    report = Report((replace(record, regimes=ranges),))
    first, second = report.to_dict()["graphs"][0]["regimes"]
    assert {name: first[name] for name in ("quantity", "first", "last", "size", "built")} == {
        "quantity": "s0",
        "first": 0,
        "last": 99,
        "size": 16,
        "built": True,
    }
    assert (second["first"], second["last"], second["built"]) == (100, None, False)
    assert first["regions"] == report.to_dict()["graphs"][0]["regions"]
    json.loads(report.to_json())
    text = str(report)
    assert "s0 0..99: onnxruntime 3, eager 1 (estimated" in text
    assert "s0 100..: onnxruntime 3, eager 1 (estimated" in text
    assert "ms at 1024, not needed so far)" in text


def test_the_dictionary_is_schema_one(record: GraphRecord) -> None:
    assert Report((record,), (EVENT,)).to_dict() == {
        "schema": 1,
        "graphs": [
            {
                "id": "inference-0",
                "phase": "inference",
                "dynamic": False,
                "nodes": 4,
                "regions": [
                    {
                        "id": "r0",
                        "backend": "onnxruntime",
                        "nodes": ["mm", "mm_1", "gelu"],
                        "ops": {"aten.mm.default": 2, "aten.gelu.default": 1},
                        "modules": ["encoder.layer.0.dense", "encoder.layer.1.dense", "encoder.layer.1"],
                        "estimated_s": 1e-3,
                        "measured_s": 9e-4,
                        "cached": True,
                        "reused_from": None,
                        "alternatives": [],
                        "margin_s": None,
                        "error": None,
                    },
                    {
                        "id": "r1",
                        "backend": "eager",
                        "nodes": ["add"],
                        "ops": {"aten.add.Tensor": 1},
                        "modules": [],
                        "estimated_s": 2e-5,
                        "measured_s": None,
                        "cached": False,
                        "reused_from": "inference-0/r9",
                        "alternatives": [],
                        "margin_s": None,
                        "error": None,
                    },
                ],
                "refusals": [
                    {
                        "node": "mm",
                        "op": "aten.mm.default",
                        "module": "encoder.layer.0.dense",
                        "backend": "inductor",
                        "code": "dtype",
                        "detail": "float32 is [red]not[/red] taken",
                    },
                    {
                        "node": "mm_1",
                        "op": "aten.mm.default",
                        "module": "encoder.layer.1.dense",
                        "backend": "inductor",
                        "code": "dtype",
                        "detail": "float32 is [red]not[/red] taken",
                    },
                    {
                        "node": "gelu",
                        "op": "aten.gelu.default",
                        "module": "encoder.layer.1",
                        "backend": "inductor",
                        "code": "unknown-op",
                        "detail": "",
                    },
                    {
                        "node": "add",
                        "op": "aten.add.Tensor",
                        "module": "",
                        "backend": "onnxruntime",
                        "code": "declined",
                        "detail": "<script>alert(1)</script>",
                    },
                ],
                "estimated_s": 1.02e-3,
                "single_backend_s": {"eager": 2.04e-3, "onnxruntime": 1.53e-3, "inductor": None},
                "optimal": False,
                "bound_gap": pytest.approx(2e-5),
                "layout": {"chosen": "as_traced", "estimated_s": {}, "conversions": 0},
                "tuning": None,
                "selection": None,
                "regimes": [],
                "decided": {
                    "by": "estimates",
                    "chosen": None,
                    "runner_up": None,
                    "margin_s": None,
                    "spread_s": None,
                },
                "advice": [
                    {
                        "backend": "inductor",
                        "code": "unknown-op",
                        "op": "aten.gelu.default",
                        "nodes": ["gelu"],
                        "detail": "",
                        "saves_s": 1e-4,
                    }
                ],
            }
        ],
        "events": [
            {
                "kind": "repair",
                "graph": "inference-0",
                "region": "r0",
                "backend": "onnxruntime",
                "detail": "placed again",
            }
        ],
        "behind": None,
    }


def test_json_is_the_dictionary_and_strict(record: GraphRecord) -> None:
    report = Report((record,), (EVENT,))
    assert json.loads(report.to_json()) == report.to_dict()
    assert "Infinity" not in report.to_json() and "NaN" not in report.to_json()


def test_the_text_says_what_ran_where_and_why(record: GraphRecord) -> None:
    text = Report((record,), (EVENT,)).to_text(width=140)
    for words in (
        "inference-0: inference, 4 nodes in 2 regions, static shapes, estimated 1.02 ms",
        "mm x2, gelu",
        "encoder.layer: 0.dense, 1",
        "nodes per backend: onnxruntime 3, eager 1",
        "onnxruntime 1.53, eager 2.04, inductor -",
        "estimated 1.50 times as fast as the best single backend (onnxruntime",
        "open by 0.020 ms (2.0%)",
        "faster: if inductor took aten.gelu.default (%gelu alone, refused: unknown-op)",
        "from cache",
        "same as r9; 1 view",
        "float32 is [red]not[/red] taken",
        "placed again",
    ):
        assert words in text, f"{words!r} is not in\n{text}"


def test_refusals_are_grouped_and_counted(record: GraphRecord) -> None:
    groups = [(group.backend, dict(group.ops), group.code, group.nodes) for group in shorten.group_refusals(record)]
    assert groups == [
        ("inductor", {"aten.mm.default": 2}, "dtype", 2),
        ("inductor", {"aten.gelu.default": 1}, "unknown-op", 1),
        ("onnxruntime", {"aten.add.Tensor": 1}, "declined", 1),
    ]


def test_refusals_for_one_reason_are_one_line(record: GraphRecord) -> None:
    refusals = tuple(
        replace(record.plan.refusals[0], node=node, code="unknown-op", detail=f"no rule for {node}")
        for node in ("mm", "mm_1", "gelu")
    )
    (group,) = shorten.group_refusals(replace(record, plan=replace(record.plan, refusals=refusals)))
    assert dict(group.ops) == {"aten.mm.default": 2, "aten.gelu.default": 1}
    assert group.detail == "no rule for gelu, and 2 more"


def test_plain_text_does_not_depend_on_the_terminal(record: GraphRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report((record,), (EVENT,))
    plain = str(report)
    for name, value in {"COLUMNS": "40", "FORCE_COLOR": "1", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    assert str(report) == plain and "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 125
    assert max(map(len, report.to_text(width=70).splitlines())) <= 70


def test_colour_only_when_asked(record: GraphRecord) -> None:
    assert "\x1b[" in Report((record,)).to_text(color=True)


def test_reports_are_joined_in_order(record: GraphRecord) -> None:
    info = BackendInfo("paid", False, "no license")
    wish = Preference(NodeMatch(op="x"), "prefer", "eager")
    other = replace(record, graph=replace(record.graph, id="inference-1"))
    joined = Report.joined(
        [Report((record,), (EVENT,), (wish,), (info,)), Report((other,), (EVENT,), (wish,), (info,)), Report()]
    )
    assert joined == Report((record, other), (EVENT,), (wish,), (info,))
    assert Report.joined([]) == Report()


def test_an_empty_report_says_so() -> None:
    report = Report()
    assert "nothing was compiled" in str(report)
    assert report.to_dict() == {"schema": 1, "graphs": [], "events": [], "behind": None}


def test_what_was_used_behind_is_told() -> None:
    parts = [WorkBehind(0, 1, 12.0, 120.0), WorkBehind(2, 0, 0.5, 120.0, UNPAID)]
    report = Report.joined([Report(behind=parts[0]), Report(), Report(behind=parts[1])])
    told = "work behind used 12.5 of 240 processor seconds; 1 jobs under way; 2 wait for further calls"
    assert f"{told} ({UNPAID})" in str(report)
    assert report.to_dict()["behind"]["used_s"] == 12.5
    assert "work behind" not in str(Report(behind=WorkBehind(budget_s=120.0)))


def test_a_graph_without_nodes(record: GraphRecord) -> None:
    empty = GraphRecord(replace(record.graph, nodes=(), outputs=()), Plan("inference-0", "inference", False, ()))
    text = str(Report((empty,)))
    assert "0 nodes in 0 regions" in text and "nodes per backend: none" in text
    assert "no legal placement into connected regions is cheaper" in text


def test_bounds_of_the_search_are_not_told_where_measurements_decided(record: GraphRecord) -> None:
    trials = (TrialRecord("mixture", "measured", 1e-3, 1e-3, 0.0), TrialRecord("eager", "measured", 2e-3, 2e-3, 0.0))
    measured = replace(record, tuning=TuningRecord("mixture", trials))
    text = str(Report((measured,)))
    assert "decided by measurements" in text and "under these costs" not in text


def test_a_measured_plan_is_told_by_its_measurement(record: GraphRecord) -> None:
    trials = (TrialRecord("mixture", "measured", 1e-3, 9e-4, 0.0), TrialRecord("eager", "measured", 2e-3, 2e-3, 0.0))
    title = str(Report((replace(record, tuning=TuningRecord("mixture", trials)),))).splitlines()[0]
    assert title.endswith("measured 0.900 ms, estimated 1.02 ms")


@pytest.mark.parametrize(("change", "told"), [("switched", True), ("kept", True), ("same", False), ("out", False)])
def test_what_calls_decided_is_not_told_by_bounds(record: GraphRecord, change: str, told: bool) -> None:
    row = {"change": change, "call": 40, "challenger": "onednn", "ratio": 0.9, "detail": "no memory"}
    figures = {"calls": 90, "spent_s": 1.0, "tried_s": 0.1, "first_result_s": 1.0, "best_result_s": 2.0}
    selection = {"champion": "onednn", "trying": "", "waiting": 0, "happened": [row], **figures}
    text = " ".join(str(Report((replace(record, selection=selection),))).split())
    assert ("under these costs" in text) is not told
    assert ("onednn at call 40, 0.9 of the time before" in text) is (change == "switched")
    assert ("1 other was not found quicker" in text) is (change == "kept")
    assert ("1 failed, as onednn: no memory" in text) is (change == "out")


def test_unavailable_backends_are_named() -> None:
    names = ("paid", "leased", "other")
    infos = tuple(BackendInfo(name, False, "no license" if name != "other" else "no device") for name in names)
    lines = str(Report(unavailable=infos)).splitlines()
    assert lines[-1] == "not available here: paid, leased: no license; other: no device"


def test_one_backend_for_everything_is_said_as_such(record: GraphRecord) -> None:
    plan = replace(record.plan, regions=(PlannedRegion("r0", "onnxruntime", ("mm", "mm_1", "gelu", "add")),))
    text = str(Report((replace(record, plan=plan),)))
    assert "everything on onnxruntime" in text


def many_kinds(record: GraphRecord, kinds: int, layers: int = 1) -> GraphRecord:
    """A graph of layers of so many regions that all have other operators; the last regions cost most."""
    node = record.graph.nodes[0]
    names = [(layer, kind) for layer in range(layers) for kind in range(kinds)]
    nodes = tuple(
        replace(node, name=f"n{layer}_{kind}", op=f"aten.op{kind}.default", module=f"encoder.layer.{layer}.part{kind}")
        for layer, kind in names
    )
    regions = tuple(
        PlannedRegion(f"r{place}", "eager", (node.name,), estimated_s=place * 1e-3) for place, node in enumerate(nodes)
    )
    plan = replace(record.plan, regions=regions, refusals=())
    return replace(record, graph=replace(record.graph, nodes=nodes, outputs=()), plan=plan, regions=(), advice=())


def test_many_regions_are_cut_to_the_costliest(record: GraphRecord) -> None:
    report = Report((many_kinds(record, 100),))
    text = str(report)
    assert "the 76 cheapest kinds of regions are left out" in text and " r99 " in text and " r75 " not in text
    everything = report.to_text(full=True)
    assert all(f" r{place} " in everything for place in range(100)) and "left out" not in everything


def test_regions_of_like_operators_are_one_row_with_their_number(record: GraphRecord) -> None:
    repeated = many_kinds(record, 3, layers=5)
    compiled = tuple(RegionRecord(region.id) for region in repeated.plan.regions)
    groups = similar_regions(replace(repeated, regions=compiled))
    assert [(group.name, len(group.regions), group.programs) for group in groups] == [
        (f"r{kind} x5", 5, 5) for kind in range(3)
    ]
    text = str(Report((replace(repeated, regions=compiled),)))
    (row,) = (line for line in text.splitlines() if line.startswith(" r1 x5 "))
    assert "op1" in row and "encoder.layer" in row and row.endswith("here x5") and " r4 " not in text


def test_a_training_step_is_told_on_two_screens(record: GraphRecord) -> None:
    """With too much of everything; and what is left out is counted."""
    words = "a reason that is told in many words, so that it does not fit into what is left of a line " * 3
    graphs = []
    for phase in ("forward", "backward"):
        graph = many_kinds(record, 90, layers=3)
        refusals = tuple(
            Refusal(node.name, f"backend{place % 7}", code, f"{words}{place}")
            for place, node in enumerate(graph.graph.nodes)
            for code in ("dtype", "declined", "unknown-op")
        )
        advice = tuple(replace(record.advice[0], op=f"aten.op{place}", detail=words[:100]) for place in range(9))
        single = tuple((f"backend{place}", 1e-3) for place in range(7))
        plan = replace(graph.plan, refusals=refusals, single_backend_s=single)
        named = replace(graph.graph, id=f"{phase}-0", phase=phase)
        graphs.append(replace(graph, graph=named, plan=plan, advice=advice))
    events = tuple(Event(kind, "forward-0", f"r{n}", "eager", f"{n} {words}") for n in range(9) for kind in EVENT_KINDS)
    missing = tuple(BackendInfo(f"other{place}", False, f"{place} {words}") for place in range(9))
    report = Report(tuple(graphs), events, (), missing)
    lines = str(report).splitlines()
    assert len(lines) <= 100 and max(map(len, lines)) <= 125
    text = "\n".join(lines)
    assert "the 79 cheapest kinds of regions are left out" in text and "the 15 rarest kinds of refusals" in text
    assert "recompile x9" in text and lines[-1].startswith(
        "not available here (`mixbackend backends` says why): other0"
    )
    everything = " ".join(report.to_text(full=True).split())
    assert len([name for name in everything.split() if name == "recompile"]) == 9 and "7 a reason" in everything


def test_the_costliest_graphs_have_tables_and_the_others_a_line(record: GraphRecord) -> None:
    graphs = tuple(
        replace(
            record,
            graph=replace(record.graph, id=f"inference-{place}"),
            plan=replace(record.plan, estimated_s=1e-3 * (1 + place % 4)),
        )
        for place in range(40)
    )
    lines = str(Report(graphs)).splitlines()
    assert len(lines) <= 100
    assert len([line for line in lines if line.endswith("; nodes per backend: onnxruntime 3, eager 1")]) == 20
    assert len([line for line in lines if line == "  nodes per backend: onnxruntime 3, eager 1"]) == 2
    assert any("the 18 cheapest graphs are left out" in line for line in lines)
    assert Report(graphs).to_text(full=True).count("\n  nodes per backend") == 40


def test_events_of_trouble_keep_their_words_and_ordinary_ones_are_counted() -> None:
    ordinary = tuple(Event("recompile", f"inference-{place}", "", "", f"guard {place}") for place in range(3))
    trouble = tuple(
        Event("quarantine", "inference-0", f"r{place}", "onnxruntime", f"trouble {place % 2}") for place in range(3)
    )
    groups = fold_events(ordinary + trouble)
    assert [(group.first.kind, group.count, group.detail) for group in groups] == [
        ("recompile", 3, "guard 0 (2 more of other words)"),
        ("quarantine", 2, "trouble 0"),
        ("quarantine", 1, "trouble 1"),
    ]


def test_what_single_nodes_would_save_is_not_told_beside_all_of_them(record: GraphRecord) -> None:
    (alone,) = record.advice
    together = replace(alone, nodes=("mm", "gelu"), seconds=3e-4)
    report = Report((replace(record, advice=(together, alone)),))
    assert str(report).count("faster: if") == 1 and "2 nodes" in str(report)
    assert report.to_text(full=True).count("faster: if") == 2


def test_regions_that_run_one_piece_of_code_are_one_row(record: GraphRecord) -> None:
    names = [f"r{place}" for place in range(12)]
    regions = tuple(PlannedRegion(name, "eager", ("add",), estimated_s=1e-3) for name in names)
    compiled = tuple(
        RegionRecord(name, measured_s=2e-3 if place < 6 else None, reused_from="inference-0/r0" if place else None)
        for place, name in enumerate(names)
    )
    repeated = replace(record, plan=replace(record.plan, regions=regions), regions=compiled)
    (group,) = repeated_regions(repeated)
    assert (group.name, len(group.regions)) == ("r0 x12", 12)
    assert group.estimated_s == pytest.approx(12e-3) and group.measured_s == pytest.approx(24e-3)
    rows = [line for line in str(Report((repeated,))).splitlines() if line.strip().startswith("r")]
    assert len([line for line in rows if " eager " in line]) == 1


@pytest.mark.parametrize(
    ("match", "warns"),
    [
        (NodeMatch(), False),
        (NodeMatch(op="aten.mm"), False),
        (NodeMatch(module="encoder.layer.*.dense"), False),
        (NodeMatch(op="aten.mm", pattern="silu"), False),
        (NodeMatch(op="aten.convolution"), True),
        (NodeMatch(op="aten.mm", phase="backward"), True),
        (NodeMatch(dtypes=("float16",)), True),
    ],
)
def test_a_rule_that_matches_nothing_is_a_warning(record: GraphRecord, match: NodeMatch, warns: bool) -> None:
    report = Report((record,), (), (Preference(match, "prefer", "inductor", origin="prefs.yaml:7"),))
    assert bool(report.warnings()) is warns
    assert ("warning: prefs.yaml:7: no op matches the rule" in str(report)) is warns


def test_no_warning_before_anything_was_compiled() -> None:
    assert Report((), (), (Preference(NodeMatch(op="x"), "forbid", "eager"),)).warnings() == ()


@pytest.mark.parametrize(
    ("paths", "short"),
    [
        ((), ""),
        (("encoder",), "encoder"),
        (tuple(f"layer.{i}.mlp" for i in range(12)), "layer.{0..11}.mlp"),
        (("layer.0", "layer.2", "layer.3", "layer.4"), "layer.{0,2..4}"),
        (("a.0.b.0", "a.0.b.1", "a.1.b.0", "a.1.b.1"), "a.{0,1}.b.{0,1}"),
        (("a", "a.b", "a.b.c"), "a"),
        (("0", "1"), "{0,1}"),
        (("a", "b", "c", "d", "e"), "a, b, c, +2 more"),
        (("bert.layer.3.output", "bert.layer.3.key", "bert.layer.3.key.norm"), "bert.layer.3: output, key"),
        (("bert.embed", "head"), "bert.embed, head"),
    ],
)
def test_module_paths_are_shortened(paths: tuple[str, ...], short: str) -> None:
    assert shorten.short_modules(paths) == short


@settings(derandomize=True, deadline=None, max_examples=draws(70, 200))
@given(st.lists(st.from_regex(r"[a-z0-9]{1,2}(\.[a-z0-9]{1,2}){0,3}", fullmatch=True), max_size=12, unique=True))
def test_shortening_ends_and_never_gets_longer(paths: list[str]) -> None:
    assert shorten.short_modules(paths, most=99).count(", ") <= max(len(paths) - 1, 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (float("inf"), "-"), (0.0, "0"), (1.5e-3, "1.50"), (0.0123, "12.3"), (1.5, "1500")],
)
def test_milliseconds(seconds: float | None, text: str) -> None:
    assert shorten.milliseconds(seconds) == text


def test_each_event_is_kept_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    other = Event("recompile", "inference-0", "", "", "new rank")
    with caplog.at_level(logging.INFO, "mixbackend"):
        for event in (EVENT, other, EVENT):
            log.append(event)
    assert log.events() == (EVENT, other) and len(log) == 2
    levels = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert levels == [
        ("WARNING", "repair inference-0/r0 on onnxruntime: placed again"),
        ("INFO", "recompile inference-0: new rank"),
    ]


def test_an_unknown_kind_of_event_is_an_error() -> None:
    with pytest.raises(ValueError, match="kinds are repair, quarantine"):
        Event("surprise", "", "", "", "")  # type: ignore[arg-type]
    assert set(EVENT_KINDS) >= {"repair", "quarantine", "fallback", "weights_rebuilt", "recompile", "verify_failed"}


def _append_many(log: EventLog, start: threading.Barrier, thread: int) -> Callable[[], None]:
    def run() -> None:
        start.wait()
        for number in range(200):
            log.append(Event("recompile", f"g{number}", f"t{thread if number % 2 else 0}", "", ""))

    return run


def test_events_from_many_threads() -> None:
    log, start = EventLog(), threading.Barrier(4)
    threads = [threading.Thread(target=_append_many(log, start, index)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log) == 100 + 4 * 100 == len(set(log.events()))
