"""B14, B19: a region gets what its sizes and numbers are made of, whoever computed them; what is claimed compiles."""

from __future__ import annotations

import dynamic_programs
import pytest
import torch

import mixbackend
from mixbackend.contracts import SymbolicSize, TensorMeta
from mixbackend.contracts.plan import Plan, PlannedRegion
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph

PREFERRED = [{"match": {}, "prefer": "codegen", "factor": 1e-6}]
TROUBLE = ("quarantine", "verify_failed", "fallback", "repair", "unverified")


def _compiled(function):
    torch._dynamo.reset()
    mixture = mixbackend.auto({"backends": ["codegen", "eager"], "rules": PREFERRED})
    return torch.compile(function, backend=mixture, dynamic=True), mixture


def _trouble(mixture):
    return [str(event) for event in mixture.report().events if event.kind in TROUBLE]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: y.pow(x.shape[0] - 10),
        lambda x, y: torch.relu(y) * 2 + (x.shape[0] - 10),
        lambda x, y: y * (x.shape[0] // 2) + x.shape[0] * x.shape[1],
        lambda x, y: y + torch.arange(x.shape[0] - 8)[:, None],
    ],
)
def test_numbers_made_of_sizes_that_no_tensor_of_the_region_has(function):
    compiled, mixture = _compiled(function)
    with torch.no_grad():
        for rows in (13, 15):
            values = [torch.randn(rows, 4), torch.rand(5) + 0.5]
            torch.testing.assert_close(compiled(*values), function(*values))
    assert not _trouble(mixture)
    assert {item.backend for graph in mixture.report().graphs for item in graph.plan.regions} == {"codegen"}


def _shown(region):
    """Sizes that a region can read from its inputs."""
    found = set()
    for item in region.inputs:
        sizes = item.meta.shape if isinstance(item.meta, TensorMeta) else (item.meta,)
        found |= {size.expression for size in sizes if isinstance(size, SymbolicSize)}
    return found


def _used(region):
    """Symbols that a region's values and numbers are made of."""
    metas = [item.meta for item in (*region.inputs, *region.outputs)]
    metas += [meta for view in region.views for meta in (*view.input_tensors, *view.output_tensors)]
    sizes = [size for meta in metas for size in (meta.shape if isinstance(meta, TensorMeta) else (meta,))]
    return {symbol for size in sizes if isinstance(size, SymbolicSize) for symbol in size.expression.free_symbols}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(30))
def test_every_op_as_a_region_of_its_own_gets_the_symbols_of_its_sizes(seed):
    program = dynamic_programs.dynamic_program(seed)
    module, graph = trace_graph(program.__call__, dynamic_programs.inputs_of(seed, 0), dynamic=True)
    regions = tuple(PlannedRegion(f"r{place}", "none", (node.name,)) for place, node in enumerate(graph.placed_nodes))
    cut = cut_regions(module, graph, Plan(graph.id, graph.phase, graph.dynamic, regions))
    used = set().union(*(_used(bound.region) for bound in cut))
    assert used, str(program)
    for bound in cut:
        assert _used(bound.region) <= _shown(bound.region), f"{program}: {bound.region.text}"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "steps", [("conv_transpose", "sigmoid", "power of a size"), ("max pool", "size divided", "half", "size added")]
)
def test_programs_compile_where_they_are_claimed(steps):
    program = dynamic_programs.DynamicProgram(steps)
    compiled, mixture = _compiled(program.__call__)
    with torch.no_grad():
        for call in range(2):
            inputs = dynamic_programs.inputs_of(3, call)
            expected = program(*inputs)
            for made, wanted in zip(compiled(*inputs), expected, strict=True):
                torch.testing.assert_close(made, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))
    assert not _trouble(mixture), str(program)
