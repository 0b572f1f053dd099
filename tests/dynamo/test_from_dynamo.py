"""Backends of Dynamo in a mixture: what they are given, what becomes of their faults, what is kept of them."""

from __future__ import annotations

import functools
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from dynamo_functions import (
    as_it_is,
    does_not_compile,
    does_not_run,
    is_wrong,
    returns_a_tensor,
    returns_nothing,
    scripted,
    traced_again,
)
from foreign_backends import kinds, mixture_of, owners

import mixbackend
from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import ContractError, OpView, Supported, UnknownBackendError, Unsupported
from mixbackend.contracts.torch_compat import dynamo_backend_names, is_fake
from mixbackend.graph.trace import trace_region
from mixbackend.registry import isolated_registry, resolution


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("fn", "options"),
    [
        (as_it_is, {}),
        (traced_again, {}),
        (scripted, {"inputs": "zeros"}),
        ("aot_eager", {}),
        ("aot_ts", {}),
        (as_it_is, {"dynamic": True}),
    ],
)
@pytest.mark.parametrize("level", ["none", "core_aten"])
def test_it_runs_a_model(fn: Any, options: dict[str, Any], level: Any, tmp_path: Path) -> None:
    mine = mixbackend.from_dynamo(fn, name="mine", decomposition=level, **options)
    module, inputs = model(), torch.randn(3, 8)
    with mixture_of(mine, folder=tmp_path) as mixture, torch.no_grad():
        compiled = torch.compile(module, backend=mixture)
        for _ in range(3):
            torch.testing.assert_close(compiled(inputs), module(inputs))
        assert owners(mixture) == {"mine"} and kinds(mixture) == []


def test_it_runs_forward_and_backward(tmp_path: Path) -> None:
    with mixture_of(mixbackend.from_dynamo("aot_eager"), folder=tmp_path) as mixture:
        module, inputs = model(), torch.randn(3, 8)
        compiled = torch.compile(module, backend=mixture)
        for _ in range(3):
            module.zero_grad()
            module(inputs).square().sum().backward()
            expected = [value.grad.clone() for value in module.parameters() if value.grad is not None]
            module.zero_grad()
            compiled(inputs).square().sum().backward()
            torch.testing.assert_close([value.grad for value in module.parameters()], expected)
        graphs = mixture.report().to_dict()["graphs"]
        assert {graph["phase"] for graph in graphs} == {"forward", "backward"}
        assert {region["backend"] for graph in graphs for region in graph["regions"]} == {"aot_eager"}
        assert kinds(mixture) == []


@pytest.mark.parametrize(
    ("fn", "events", "words"),
    [
        (does_not_compile, ["quarantine"], "does not compile: NotImplementedError: no license"),
        (returns_nothing, ["quarantine"], "returned a NoneType instead of something to call"),
        (does_not_run, ["quarantine", "repair"], "RuntimeError: the device is gone"),
        (returns_a_tensor, ["quarantine", "repair"], "returned a Tensor instead of a tuple"),
        (is_wrong, ["verify_failed", "repair"], "output 0 is off by"),
    ],
)
def test_a_fault_is_an_event_and_the_region_goes_elsewhere(
    fn: Any, events: list[str], words: str, tmp_path: Path
) -> None:
    module, inputs = model(), torch.randn(3, 8)
    with mixture_of(mixbackend.from_dynamo(fn, name="mine"), folder=tmp_path) as mixture, torch.no_grad():
        compiled = torch.compile(module, backend=mixture)
        for _ in range(3):
            torch.testing.assert_close(compiled(inputs), module(inputs))
        assert owners(mixture) == {"eager"}
        told = [item for item in mixture.report().events if item.backend == "mine"]
        assert [item.kind for item in told] == events and words in told[0].detail


def test_graphs_are_plain_and_examples_fit() -> None:
    seen: list[Any] = []

    def look(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        seen.append((graph_module, example_inputs, torch.is_grad_enabled()))
        return graph_module.forward

    region = trace_region(lambda x, w: (torch.relu(x @ w), x + 1), [torch.randn(4, 8), torch.randn(8, 2)])
    kept = region.graph_module.code
    compiled = mixbackend.from_dynamo(look, name="mine").compile(region)
    ((graph_module, examples, gradients),) = seen
    assert all(is_fake(value) for value in examples) and not gradients
    assert [tuple(value.shape) for value in examples] == [(4, 8), (8, 2)]
    assert len(list(graph_module.graph.find_nodes(op="placeholder"))) == 2
    assert torch.fx.GraphModule in type(graph_module).__bases__, "no class that writes its code later"
    assert graph_module is not region.graph_module and region.graph_module.code == kept
    assert [tuple(value.shape) for value in graph_module(*examples)] == [(4, 2), (4, 8)]
    x, w = torch.randn(4, 8), torch.randn(8, 2)
    torch.testing.assert_close(tuple(compiled.run([x, w])), (torch.relu(x @ w), x + 1))


def test_what_is_made_fake_for_static_sizes_has_static_sizes() -> None:
    seen: list[Any] = []

    def look(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        seen.append(example_inputs[0].fake_mode.from_tensor(torch.ones(5, 3)))
        return graph_module.forward

    mixbackend.from_dynamo(look, name="mine").compile(trace_region(torch.relu, [torch.randn(4)]))
    assert [type(size) for size in seen[0].shape] == [int, int]


def test_symbolic_sizes_are_refused_unless_it_takes_them() -> None:
    def piece(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + x

    region = trace_region(piece, [torch.randn(4, 8)], dynamic=True)
    refused = [mixbackend.from_dynamo(as_it_is).judge(view) for view in region.views]
    assert {item.code for item in refused if isinstance(item, Unsupported)} == {"dynamic-shape"}
    takes = mixbackend.from_dynamo("aot_eager", dynamic=True)
    assert all(isinstance(takes.judge(view), Supported) for view in region.views)
    compiled = takes.compile(region)
    for rows in (4, 7):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled.run([x])[0], piece(x))


def views_of(function: Any, *inputs: torch.Tensor) -> dict[str, OpView]:
    return {view.op: view for view in trace_region(function, list(inputs)).views}


@pytest.mark.parametrize(
    ("supports", "taken"),
    [
        ("pure", {"aten.relu.default", "aten.add.Tensor"}),
        ("aten", {"aten.relu.default", "aten.add.Tensor"}),
        ({"aten.add"}, {"aten.add.Tensor"}),
        ({"aten.add.Scalar", "aten.relu.default"}, {"aten.relu.default"}),
        ([torch.ops.aten.add, torch.ops.aten.relu.default], {"aten.relu.default", "aten.add.Tensor"}),
        (lambda view: view.op_class == "pointwise" and view.op != "aten.relu.default", {"aten.add.Tensor"}),
        (
            lambda view: Supported(1e-6) if "add" in view.op else Unsupported("declined", "not mine"),
            {"aten.add.Tensor"},
        ),
    ],
)
def test_supports_says_what_it_takes(supports: Any, taken: set[str]) -> None:
    views = views_of(lambda x, y: torch.relu(x + y), torch.randn(4), torch.randn(4))
    mine = mixbackend.from_dynamo(as_it_is, supports=supports)
    assert {op for op, view in views.items() if isinstance(mine.judge(view), Supported)} == taken


def test_seconds_that_supports_states_are_its_costs() -> None:
    (view,) = views_of(torch.relu, torch.randn(4)).values()
    assert mixbackend.from_dynamo(as_it_is, supports=lambda _: Supported(3e-6)).judge(view) == Supported(3e-6)


def test_other_types_devices_and_impure_ops_are_refused_whatever_it_supports() -> None:
    def code(mine: Any, view: OpView) -> str:
        answer = mine.judge(view)
        assert isinstance(answer, Unsupported)
        return answer.code

    (relu,) = views_of(torch.relu, torch.randn(4)).values()
    everything = functools.partial(mixbackend.from_dynamo, as_it_is, supports=lambda _: True)
    assert code(everything(dtypes={torch.float16}), relu) == "dtype"
    assert code(everything(devices=["cuda"]), relu) == "device"
    drawn = views_of(torch.bernoulli, torch.rand(4))["aten.bernoulli.default"]
    assert code(everything(), drawn) == "random"


@pytest.mark.parametrize(
    ("fn", "options", "words"),
    [
        (3, {}, "not a int"),
        (lambda gm, inputs: gm, {}, "no usable name"),
        ("mixbackend", {}, "of its own mixture"),
        (as_it_is, {"supports": "everything"}, "'everything' is no level"),
        (as_it_is, {"supports": {"aten.rellu"}}, "torch has no operator 'aten.rellu'"),
        (as_it_is, {"supports": set()}, "names no operator"),
        (as_it_is, {"inputs": "zeros", "dynamic": True}, "real examples have one size"),
    ],
)
def test_what_is_no_backend_is_refused(fn: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        mixbackend.from_dynamo(fn, **options)


def test_an_unknown_name_lists_what_torch_knows() -> None:
    with pytest.raises(UnknownBackendError) as caught:
        mixbackend.from_dynamo("aot_eagre")
    assert "torch knows no backend 'aot_eagre'" in caught.value.what
    assert all(name in caught.value.what for name in dynamo_backend_names())


def test_missing_packages_are_the_reason_why_it_is_left_out() -> None:
    with isolated_registry(mixbackend.from_dynamo(as_it_is, packages=["no_such_compiler"]), EagerBackend()):
        (skipped,) = resolution().skipped
    assert skipped.name == "as_it_is" and "no_such_compiler, which cannot be imported" in skipped.reason


def test_a_configuration_takes_it_as_it_is(tmp_path: Path) -> None:
    module, inputs = model(), torch.randn(3, 8)
    with isolated_registry(EagerBackend()), torch.no_grad():
        for _ in range(2):  # as a cell of a notebook that runs again
            mine = mixbackend.from_dynamo(as_it_is, supports={"aten.addmm", "aten.gelu"})
            rules = [{"match": {"op": "aten.gelu"}, "require": mine}]
            config = {"backends": [mine, "eager"], "rules": rules, "cache": {"dir": str(tmp_path)}}
            mixture = mixbackend.auto(config)
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(module, backend=mixture)(inputs), module(inputs))
        assert "as_it_is" in owners(mixture)
        with pytest.raises(mixbackend.MixbackendError, match="two backends are called 'as_it_is'"):
            mixbackend.auto({"backends": [mixbackend.from_dynamo(traced_again, name="as_it_is")]})


def test_fingerprints_name_the_function_and_its_distribution() -> None:
    def fingerprint(fn: Any, **options: Any) -> str:
        return mixbackend.from_dynamo(fn, name="mine", **options).fingerprint()

    assert f"torch._dynamo.backends.debugging.aot_eager of torch {version('torch')} " in fingerprint("aot_eager")
    assert "in process" not in fingerprint("aot_eager") and "in process" not in fingerprint(as_it_is)
    assert "in process" in fingerprint(lambda gm, inputs: gm)
    assert "in process" in fingerprint(functools.partial(as_it_is))
    assert "in process" in fingerprint(as_it_is, supports=lambda view: True)
    assert fingerprint(as_it_is) != fingerprint(as_it_is, supports={"aten.relu"})
    assert "numpy=numpy " in fingerprint(as_it_is, packages=["numpy"])


def test_sources_that_are_not_installed_count() -> None:
    with isolated_registry(mixbackend.from_dynamo(as_it_is), mixbackend.from_dynamo("aot_eager"), EagerBackend()):
        stated = {item.name: item.fingerprint() for item in resolution().backends}
    assert "source=" in stated["as_it_is"] and "source=" not in stated["aot_eager"]
