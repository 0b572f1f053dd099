"""Operator samples: what is wrong is found, what eager has by luck is not held against anybody, runs resume."""

from __future__ import annotations

import json

import pytest
import torch

import mixbackend
from mixbackend.benchmarks.conformance import page, suites
from mixbackend.benchmarks.conformance.operator_check import check
from mixbackend.benchmarks.conformance.operator_sample import OperatorSample
from mixbackend.benchmarks.conformance.operators import Options, _Work
from mixbackend.benchmarks.conformance.tallies import tally_of
from mixbackend.benchmarks.results import ResultFile


def _sample(operator, *arguments, **named):
    first, *others = arguments
    return OperatorSample("sample", 0, operator, (first, tuple(others), named))


def _backend(change):
    """A backend that returns what a function makes of eager's results."""

    def compile_graph(graph_module, inputs):
        return lambda *values: tuple(change(item) for item in graph_module(*values))

    return compile_graph


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda item: item, ""),
        (lambda item: item + 1e-3, "off by"),
        (lambda item: item * (2.0 - item.detach() / item.detach()), ""),
        (lambda item: item.double(), "dtype"),
        (lambda item: item.t().contiguous().t(), "strides"),
        (lambda item: item[:1], "shape"),
        (lambda item: item.detach(), "gradients"),
        (lambda item: item + (item - item.detach()), "output 1 is off"),
    ],
    ids=["same", "far", "near", "type", "strides", "shape", "no gradient", "wrong gradient"],
)
def test_what_is_wrong_is_found(change, problem):
    values = torch.linspace(0.5, 2.0, 12).reshape(3, 4).requires_grad_()
    finding = check(_sample(torch.exp, values), _backend(change))
    assert (finding.outcome, finding.graphs) == ("wrong" if problem else "right", 1)
    assert problem in finding.problem
    assert finding.control == ("right" if problem else "")


def test_what_raises_is_wrong_and_what_eager_refuses_is_no_sample():
    def refuse(graph_module, inputs):
        raise ValueError("not this one")

    assert "not this one" in check(_sample(torch.exp, torch.ones(3)), refuse).problem
    assert check(_sample(torch.mm, torch.ones(3), torch.ones(3)), refuse).outcome == "refused"


def test_random_results_are_held_to_shapes_and_types():
    values = torch.ones(4, 4)
    other = _backend(lambda item: torch.rand_like(item))
    assert check(_sample(torch.rand_like, values), other).outcome == "random"
    assert "dtype" in check(_sample(torch.rand_like, values), _backend(lambda item: item.double())).problem


def test_eager_may_be_right_by_luck():
    """Nothing is left of the numbers: eager has zeros, and others may be off by as much as rounding is."""
    values = torch.tensor([1.0e4 / 3.0, 3.0])
    sample = _sample(lambda item: (item * 0.1 - item / 10.0) * 1e6, values)
    assert check(sample, _backend(lambda item: item + 50.0)).outcome == "right"
    assert check(sample, _backend(lambda item: item + 1000.0)).outcome == "wrong"


def test_inputs_lie_in_memory_as_the_sample_has_them():
    seen = []
    values = torch.arange(6.0).reshape(2, 3).t()
    expanded = torch.ones(3, 1).expand(3, 2)
    _sample(lambda *items: seen.extend(items) or items[0] + items[1], values, expanded).run()
    assert [item.stride() for item in seen] == [values.stride(), expanded.stride()]
    assert all(mine.data_ptr() != theirs.data_ptr() for mine, theirs in zip(seen, (values, expanded), strict=True))


def _options(**changes):
    return Options(**{"jobs": 1, "chunk": 4, "samples": 0, "limit_s": 60.0, "timeout_s": 9.0, "label": "a", **changes})


def _answer(more, **tally):
    counts = {"right": 0, "random": 0, "refused": 0, "wrong": 0, "compiled": 0, **tally}
    return {"status": "pass", "tally": counts, "wrong": [], "repaired": [], "more": more, "processor_s": 1.0}


def _shown(line):
    """Nobody looks."""


def test_a_run_goes_on_where_another_ended(tmp_path):
    path = tmp_path / "results.jsonl"
    work = _Work([("add", "float32"), ("sub", "float32")], _options(), ResultFile(path), _shown)
    first = work._take()
    assert (first.operator, first.first, first.count) == ("add", 0, 4)
    work._keep(first, _answer(True, right=4))
    work._keep(work._take(), _answer(False, right=2, random=1))

    again = _Work([("add", "float32"), ("sub", "float32")], _options(), ResultFile(path), _shown)
    assert [(piece.operator, piece.first) for piece in again.pieces] == [("add", 4)]
    assert len(_Work([("add", "float32")], _options(label="b"), ResultFile(path), _shown).pieces) == 1
    tally = tally_of(ResultFile(path).records(), "a", "float32")
    assert (tally.samples, tally.operators, tally.complete, tally.random) == (7, 2, 1, 1)


def test_a_crash_is_narrowed_down_to_a_sample(tmp_path):
    file = ResultFile(tmp_path / "results.jsonl")
    work = _Work([("add", "float32")], _options(samples=4), file, _shown)
    work._keep(work._take(), {"status": "crash", "detail": "signal SIGSEGV"})
    assert [(piece.first, piece.count) for piece in work.pieces] == [(0, 1), (1, 1), (2, 1), (3, 1)]
    for place in range(4):
        work._keep(work._take(), _answer(True, right=1) if place != 2 else {"status": "crash", "detail": "SIGSEGV"})
    assert not work.pieces
    tally = tally_of(file.records(), "a", "float32")
    assert (tally.samples, tally.wrong) == (4, 1)
    assert tally.ours == ("add #2: crash: SIGSEGV",)
    assert not _Work([("add", "float32")], _options(samples=4), file, _shown).pieces


def test_samples_of_an_operator_are_limited(tmp_path):
    work = _Work([("add", "float32")], _options(samples=6), ResultFile(tmp_path / "results.jsonl"), _shown)
    sizes = []
    while work.pieces:
        piece = work._take()
        sizes.append(piece.count)
        work._keep(piece, _answer(True, right=piece.count))
    assert sizes == [4, 2]


_JUNIT = """<testsuites><testsuite><testcase classname="tests.clients.test_generate" name="test_one" time="1.5"/>
<testcase classname="tests.clients.test_generate" name="test_two"><failure message="off by 2">x</failure></testcase>
<testcase classname="" name=""/>
<testcase classname="tests.clients.test_peft" name="test_three"><skipped message="peft is not installed"/></testcase>
</testsuite></testsuites>"""


def test_the_page_says_what_was_found(tmp_path):
    suites.junit_path(tmp_path, "clients", "auto").write_text(_JUNIT)
    record = {"key": "k", "label": "here", "dtype": "int64", "operator": "add", "first": 0, "count": 4}
    wrong = [{"sample": "add #1", "problem": "output 0 is off", "control": "right"}]
    answer = {**_answer(False, right=3, wrong=1), "wrong": wrong}
    (tmp_path / "opinfo.jsonl").write_text(json.dumps({**record, **answer}) + "\n")
    assert page.write_page(tmp_path, [tmp_path / "opinfo.jsonl"], tmp_path / "page.md") == 0
    text = (tmp_path / "page.md").read_text()
    assert "| `test_generate` | `generate()`:" in text and "| 1 | 0 | 1 |" in text
    assert "test_generate::test_two: off by 2" in text and "peft is not installed" in text
    assert "| here | int64 | 4 | 1 | 1 | 0 | 0 | 0 | 1 | 0 | 0 |" in text and "add #1: output 0 is off" in text
    assert "| `` |" not in text, "what was interrupted has no name"
    assert "not run" in text, "TorchCTS has no results"


def test_strides_that_torch_states_are_told():
    """The fake kernel of ``max_unpool2d`` states another layout than the real one gives for channels-last images."""
    pooled, places = torch.nn.functional.max_pool2d(
        torch.randn(1, 2, 6, 6).to(memory_format=torch.channels_last), 2, 2, return_indices=True
    )
    sample = OperatorSample("max_unpool2d", 0, torch.nn.functional.max_unpool2d, (pooled, (places, 2, 2), {}))
    eager, (stated,) = sample.run().outputs[0].stride(), sample.stated_strides()
    finding = check(sample, mixbackend.auto({"backends": ["codegen", "eager"]}))
    assert finding.outcome == ("right" if stated == eager else "stated")

    def apart(graph_module, inputs):
        return lambda *values: [graph_module(*values)[0].clone(memory_format=torch.contiguous_format).transpose(2, 3)]

    assert check(sample, apart).outcome == "wrong"
