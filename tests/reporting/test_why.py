"""Why a node is where it is: who is meant by a pattern, what is said of it, and what measurements change about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mixbackend.contracts import MixbackendError, PlacementError, Refusal
from mixbackend.partitioner.alternatives import Alternative, RegionAlternatives
from mixbackend.partitioner.breakdown import Parts
from mixbackend.partitioner.counterfactuals import NodeAlternatives, NodeOption
from mixbackend.reporting import GraphRecord, Report
from mixbackend.reporting.decided import Decided
from mixbackend.reporting.node_answer import answers_text
from mixbackend.reporting.trials import TrialRecord, TuningRecord

HERE = Parts(4e-4, "probed", "linear_gelu", 1e-5, 2e-5, 0.0, 5e-6)
THERE = Parts(3e-4, "backend", "", 1e-5, 2e-5, 3e-5, 4e-5)
REFUSED = Refusal("mm", "inductor", "dtype", "float32 is [red]not[/red] taken")
TOO_SMALL = Refusal("mm_1", "onnxruntime", "region-too-small", "1 ops, needed 2")


class KnownCounterfactuals:
    """Answers that are written down."""

    def __init__(self, failing: bool = False) -> None:
        self.failing = failing
        self.asked: list[tuple[str, ...]] = []
        self.placed = 0

    @property
    def regions(self) -> tuple[RegionAlternatives, ...]:
        if self.failing:
            raise PlacementError("the backends have changed")
        rows = (Alternative("eager", 2e-4, 3), Alternative("inductor", None, 0, REFUSED))
        return (RegionAlternatives("r0", rows),)

    def nodes(self, names: Sequence[str], placed: int = 0) -> tuple[NodeAlternatives, ...]:
        if self.failing:
            raise PlacementError("the backends have changed")
        self.asked.append(tuple(names))
        self.placed = placed
        return tuple(self._node(name) for name in names)

    def _node(self, name: str) -> NodeAlternatives:
        options = (
            NodeOption(Alternative("eager", 2.5e-4, 2), ("mm",), THERE, 1.2e-4 if self.placed else None),
            NodeOption(Alternative("inductor", None, 0, REFUSED)),
            NodeOption(Alternative("codegen", None, 1, TOO_SMALL)),
            NodeOption(Alternative("onednn", None, 1)),
        )
        return NodeAlternatives(name, "mm", "r0", "onnxruntime", HERE, options)


@pytest.fixture
def known(record: GraphRecord) -> GraphRecord:
    return replace(record, counterfactuals=KnownCounterfactuals())


def tuned(record: GraphRecord) -> GraphRecord:
    trials = (
        TrialRecord("mixture", "measured", 1e-3, 9.5e-4, 2e-5),
        TrialRecord("eager, as_traced", "slower", 2e-3, 1.5e-3, 6e-5),
        TrialRecord("inductor", "crash", 1e-3),
    )
    return replace(record, tuning=TuningRecord("mixture", trials))


@pytest.mark.parametrize(
    ("pattern", "nodes"),
    [
        ("mm_1", ["mm_1"]),
        ("%mm_1", ["mm_1"]),
        ("mm", ["mm", "mm_1"]),
        ("aten.mm", ["mm", "mm_1"]),
        ("aten.mm.default", ["mm", "mm_1"]),
        ("add.Tensor", ["add"]),
        ("encoder.layer.1", ["mm_1", "gelu"]),
        ("encoder.layer.*.dense", ["mm", "mm_1"]),
        ("encoder", ["mm", "mm_1", "gelu"]),
        ("*", ["mm", "mm_1", "gelu", "add"]),
    ],
)
def test_a_pattern_means_nodes_operators_and_modules(known: GraphRecord, pattern: str, nodes: list[str]) -> None:
    assert [answer.node for answer in Report((known,)).why(pattern)] == nodes


def test_several_patterns_are_answered_in_graph_order_and_each_node_once(known: GraphRecord) -> None:
    assert [answer.node for answer in Report((known,)).why("add", "gelu", "encoder.layer.1")] == ["mm_1", "gelu", "add"]


def test_a_pattern_that_means_nothing_is_an_error_with_the_nearest_name(known: GraphRecord) -> None:
    report = Report((known,))
    with pytest.raises(MixbackendError, match=r"no node, operator or module of 4 nodes is meant by 'encodr', 'gelo'"):
        report.why("encodr", "mm", "gelo")
    with pytest.raises(MixbackendError, match=r"did you mean 'encoder', 'gelu'\?"):
        report.why("encodr", "gelo")
    with pytest.raises(MixbackendError, match=r"operators are add\.Tensor, gelu, mm"):
        report.why("zzzzzz")
    with pytest.raises(MixbackendError, match="nothing was compiled"):
        Report().why("mm")


def test_nothing_is_placed_again_unless_somebody_asks(known: GraphRecord) -> None:
    report = Report((known,))
    assert report.why("gelu")[0].options[0].adapted_s is None
    assert report.why("gelu", placed=3)[0].options[0].adapted_s == 1.2e-4


def test_an_answer_as_data_is_complete_and_strict(known: GraphRecord) -> None:
    (answer,) = Report((known,)).why("gelu", placed=1)
    data = json.loads(json.dumps(answer.to_dict(), allow_nan=False))
    assert {name: data[name] for name in ("graph", "node", "op", "module", "follows", "region", "backend")} == {
        "graph": "inference-0",
        "node": "gelu",
        "op": "aten.gelu.default",
        "module": "encoder.layer.1",
        "follows": "mm",
        "region": "r0",
        "backend": "onnxruntime",
    }
    assert data["parts"]["origin"] == "probed" and data["parts"]["total_s"] == pytest.approx(4.35e-4)
    assert data["margin_s"] == 2.5e-4 and data["decided"]["by"] == "estimates" and data["region_measured_s"] == 9e-4
    eager, inductor, *_ = data["alternatives"]
    assert (eager["backend"], eager["change_s"], eager["adapted_change_s"]) == ("eager", 2.5e-4, 1.2e-4)
    assert eager["along"] == ["mm"] and eager["parts"]["origin"] == "backend"
    assert inductor["change_s"] is None and inductor["parts"] is None
    assert inductor["refused"] == {
        "backend": "inductor",
        "code": "dtype",
        "detail": "float32 is [red]not[/red] taken",
        "node": "mm",
    }


def test_an_answer_as_text_says_it_in_numbers(known: GraphRecord) -> None:
    (answer,) = Report((known,)).why("gelu", placed=1)
    text = str(answer)
    for words in (
        "inference-0 %gelu: aten.gelu.default in encoder.layer.1",
        "on onnxruntime in r0, placed with %mm; the region was measured at 0.900 ms",
        "decided by estimates",
        "probed, linear_gelu",
        "+0.250",
        "+0.120",
        "eager: takes %mm along",
        "inductor: refuses: dtype, float32 is [red]not[/red] taken",
        "codegen: onnxruntime refuses what would be left of its region: region-too-small, 1 ops, needed 2",
        "onednn: no cut of the regions would be legal",
        "margin of this node by estimates: 0.250 ms",
    ):
        assert words in text, f"{words!r} is not in\n{text}"
    assert "measured alone" not in text and "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 140


def test_answers_that_say_the_same_are_told_once(known: GraphRecord) -> None:
    report = Report((known,))
    text = answers_text(report.why("mm"), 140)
    assert text.count("%mm: aten.mm.default") == 1 and "%mm_1" not in text  # it is placed with the other
    text = answers_text(report.why("mm_1", "gelu"), 140)
    assert "%mm_1: " in text and "%gelu: " in text and "the same" not in text  # operators differ
    (first,), (second,) = report.why("gelu", placed=1), report.why("gelu")
    twins = [replace(answer, node=name, follows=name) for answer, name in ((first, "a"), (second, "b"))]
    text = answers_text(twins, 140)
    assert "%a: aten.gelu" in text and "+0.120" in text and "the same holds for %b (r0)" in text


def test_measurements_are_shown_as_what_decided(known: GraphRecord) -> None:
    (answer,) = Report((tuned(known),)).why("gelu")
    assert answer.decided.by == "measurements" and answer.alone_s == (("eager", pytest.approx(5.5e-4)),)
    text = str(answer)
    assert "decided by measurements: mixture was 0.550 ms faster than eager, as_traced, spread 0.060 ms" in text
    assert "measured alone" in text and "+0.550" in text and "decided by estimates" not in text
    assert answer.to_dict()["alternatives"][0]["measured_alone_change_s"] == pytest.approx(5.5e-4)
    whole = str(Report((tuned(known),)))
    assert "decided by measurements: mixture was 0.550 ms faster" in " ".join(whole.split())


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ((), Decided("estimates", margin_s=2e-4)),
        ((TrialRecord("mixture", "crash", 1.0),), Decided("estimates", margin_s=2e-4)),
        ((TrialRecord("mixture", "measured", 1.0, 2.0, 0.5),), Decided("measurements", "mixture")),
        (
            (TrialRecord("mixture", "measured", 1.0, 2.0, 0.5), TrialRecord("x", "measured", 1.0, 1.75, None)),
            Decided("measurements", "mixture", "x", -0.25, 0.5),
        ),
    ],
)
def test_who_decided(known: GraphRecord, trials: tuple[TrialRecord, ...], expected: Decided) -> None:
    assert replace(known, tuning=TuningRecord("mixture", trials) if trials else None).decided == expected


def test_a_plan_that_was_made_before_is_said_to_have_decided(known: GraphRecord) -> None:
    locked = replace(known, plan=replace(known.plan, search="fixed"))
    assert locked.decided.by == "earlier plan"
    text = str(Report((locked,)))
    assert "a plan that was made before" in text and "the best placement can be" not in text


def test_the_report_shows_margins_and_alternatives(known: GraphRecord) -> None:
    report = Report((known,))
    first, second = report.to_dict()["graphs"][0]["regions"]
    assert first["margin_s"] == 2e-4
    assert [row["backend"] for row in first["alternatives"]] == ["eager", "inductor"]
    assert first["alternatives"][0] == {"backend": "eager", "change_s": 2e-4, "nodes": 3, "refused": None}
    assert second["alternatives"] == [] and second["margin_s"] is None
    assert "margin ms" in str(report) and "0.200 eager" in str(report)
    assert report.to_dict()["graphs"][0]["decided"]["margin_s"] == 2e-4


def test_a_plan_without_prices_still_tells_who_refuses(record: GraphRecord) -> None:
    for unknown in (record, replace(record, counterfactuals=KnownCounterfactuals(failing=True))):
        report = Report((unknown,))
        assert report.to_dict()["graphs"][0]["regions"][0]["alternatives"] == []
        (answer,) = report.why("mm_1")
        assert answer.parts is None and answer.margin_s is None
        (option,) = answer.options
        assert option.alternative.refused is not None and option.alternative.refused.code == "dtype"
        assert "only refusals are known" in str(answer)


def test_long_answers_are_cut(known: GraphRecord) -> None:
    from mixbackend.reporting.why import answers

    assert [answer.node for answer in answers([known, known], ["*"], most=5)] == ["mm", "mm_1", "gelu", "add", "mm"]
