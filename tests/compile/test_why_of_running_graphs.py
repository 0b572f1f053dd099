"""Counterfactuals of graphs that run: asked when read, about the plan of now, and measurements before estimates."""

from __future__ import annotations

import pytest
import torch

from mixbackend.contracts import Unsupported
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner import counterfactuals as counterfactuals_module
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.select.decision import MEASURED, Decision, Trial


def three_ops(value: torch.Tensor) -> torch.Tensor:
    return value.exp().sin().cos()


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows whenever a plan is priced for counterfactuals."""
    calls: list[int] = []
    make = counterfactuals_module.make_problem
    monkeypatch.setattr(counterfactuals_module, "make_problem", lambda *given: calls.append(1) or make(*given))
    return calls


def test_nothing_is_priced_before_somebody_reads_and_then_once(make_mixture, loopback, priced):
    mixture = make_mixture(loopback)
    torch.compile(three_ops, backend=mixture)(torch.randn(4))
    report = mixture.report()
    assert priced == []
    (region,) = report.to_dict()["graphs"][0]["regions"]
    assert len(priced) == 1
    assert mixture.report().to_dict()["graphs"][0]["regions"] == [region] and "margin ms" in str(mixture.report())
    assert len(priced) == 1
    (alternative,) = region["alternatives"]
    assert (alternative["backend"], alternative["nodes"], alternative["refused"]) == ("eager", 3, None)
    assert alternative["change_s"] == pytest.approx(3 * (1e-3 - 1e-6), rel=1e-3) == region["margin_s"]


def test_a_page_prices_each_graph_once(make_mixture, loopback, priced, tmp_path):
    mixture = make_mixture(loopback)
    torch.compile(three_ops, backend=mixture)(torch.randn(4))
    report = mixture.report()
    report.to_html(tmp_path / "report.html")
    assert len(priced) == 1
    (record,) = report.graphs
    assert sum(record.counterfactuals.seconds().values()) == pytest.approx(record.plan.estimated_s)


def test_why_tells_refusals_and_prices_of_a_compiled_graph(make_mixture, loopback):
    class Reluctant(type(loopback)):
        def judge(self, view):
            refused = Unsupported("declined", "no sine yet") if view.op == "aten.sin.default" else None
            return refused or super().judge(view)

    mixture = make_mixture(Reluctant())
    torch.compile(three_ops, backend=mixture)(torch.randn(4))
    sine, cosine = mixture.report().why("sin", "cos", placed=2)
    assert (sine.backend, sine.parts.op_s, sine.parts.origin) == ("eager", 1e-3, "prior")
    assert sine.options[0].alternative.refused.detail == "no sine yet" and sine.margin_s is None
    # Alone, the cosine joins eager's region: two entries less one, one crossing more or less.
    (option,) = cosine.options
    assert cosine.backend == "loopback" and option.alternative.change_s == pytest.approx(1e-3, rel=1e-2)
    assert option.adapted_s == pytest.approx(option.alternative.change_s)


def test_after_a_repair_counterfactuals_are_those_of_the_present_plan(make_mixture, faulty):
    mixture = make_mixture(faulty(run_error=ValueError("boom"), only="aten.sin.default"), on_failure="repair")
    torch.compile(three_ops, backend=mixture)(torch.randn(4))
    (answer,) = mixture.report().why("sin")
    assert answer.backend == "eager" and answer.options[0].alternative.refused.code == "quarantined"
    assert mixture.report().to_dict()["graphs"][0]["regions"][0]["margin_s"] is None


def test_a_tuned_graph_says_what_was_measured(make_mixture, loopback):
    mixture = make_mixture(loopback)
    module, _ = trace_graph(three_ops, [torch.randn(4)])
    trials = (
        Trial(Choice(single="eager"), 3e-3, MEASURED, "", (2e-6, 2.2e-6, 2.1e-6)),
        Trial(DEFAULT, 3e-6, MEASURED, "", (9e-6, 9e-6, 9e-6)),
        Trial(Choice(single="loopback"), 3e-6, MEASURED, "", (8e-6, 8e-6, 8e-6)),
    )
    mixture.compile_captured(module, "inference", {}, Decision(trials[0].choice, trials))
    report = mixture.report()
    (answer,) = report.why("sin")
    assert answer.backend == "eager" and answer.decided.by == "measurements"
    assert (answer.decided.runner_up, answer.decided.margin_s) == ("loopback", pytest.approx(5.9e-6))
    assert dict(answer.alone_s) == {"loopback": pytest.approx(5.9e-6)}
    # Estimates would have it elsewhere; they did not decide, and do not claim a margin.
    assert answer.options[0].alternative.change_s < 0.0 and answer.margin_s == 0.0
    assert "estimates did not decide" in str(answer) and "decided by measurements: eager" in str(report)
    assert report.to_dict()["graphs"][0]["decided"]["by"] == "measurements"
