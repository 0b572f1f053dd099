"""bfloat16 in the plug-in: memory is shared without numpy's help, and results are as near as eager's own."""

from __future__ import annotations

import pytest
import torch
from mixbackend_openvino.backend import OpenVinoBackend

import mixbackend
from mixbackend.compile.replay import make_inputs
from mixbackend.contracts import ErrorBudget, InputRole, RegionSketch, Supported, Unsupported
from mixbackend.execute.verify import check_region
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten
BACKEND = OpenVinoBackend()
HALF = torch.bfloat16


def _mixer(x, weight, bias, scale, shift):
    normal = aten.native_layer_norm(x, [32], scale, shift, 1e-5)[0]
    return aten.add(aten.gelu(aten.addmm(bias, normal, aten.t(weight))), x)


def _sketch(region):
    metas = (tuple(item.meta for item in part) for part in (region.inputs, region.outputs))
    return RegionSketch(region.views, *metas, 1e-3)


def _weights(dtype=HALF):
    return [torch.randn(32, 32, dtype=dtype) * 0.2, *(torch.randn(32, dtype=dtype) for _ in range(3))]


def _near(region, run, inputs):
    before = [value.clone() for value in inputs]
    outputs = list(run(inputs))
    assert [value.dtype for value in outputs] == [item.meta.dtype for item in region.outputs]
    check = check_region(region, before, outputs, ErrorBudget())
    assert check.right, str(check)
    return outputs


def test_every_op_is_taken_and_computed_as_exactly_as_by_eager():
    region = trace_region(_mixer, [torch.randn(16, 32, dtype=HALF), *_weights()])
    assert all(isinstance(BACKEND.judge(view), Supported) for view in region.views)
    assert BACKEND.decline(_sketch(region)) is None
    compiled = BACKEND.compile(region)
    first = _near(region, compiled.run, make_inputs(region))
    second = _near(region, compiled.run, make_inputs(region))
    assert first[0].data_ptr() != second[0].data_ptr()


def test_constants_lie_where_torch_has_them():
    roles = {place: PlaceholderRole(InputRole.CONSTANT, f"w{place}") for place in range(1, 5)}
    region = trace_region(_mixer, [torch.randn(16, 32, dtype=HALF), *_weights()], roles=roles)
    values = make_inputs(region)
    known = [item.role is InputRole.CONSTANT for item in region.inputs]
    constants = [value if is_known else None for value, is_known in zip(values, known, strict=True)]
    bound = BACKEND.compile(region).bind(constants)
    _near(region, bound.run, values)


def test_sizes_known_only_at_run_time():
    region = trace_region(_mixer, [torch.randn(16, 32, dtype=HALF), *_weights()], dynamic=True)
    compiled = BACKEND.compile(region)
    for rows in (16, 7):
        sample = [torch.randn(rows, 32, dtype=HALF), *_weights()]
        _near(region, compiled.run, make_inputs(trace_region(_mixer, sample, dynamic=True)))


def test_artifacts_keep_the_precision():
    region = trace_region(_mixer, [torch.randn(16, 32, dtype=HALF), *_weights()])
    inputs, compiled = make_inputs(region), BACKEND.compile(region)
    assert torch.equal(BACKEND.load(region, compiled.artifact).run(inputs)[0], compiled.run(inputs)[0])


def test_two_precisions_are_not_one_region():
    def both(x, y):
        return aten.relu(x), aten.relu(y)

    region = trace_region(both, [torch.randn(4, 8), torch.randn(4, 8, dtype=HALF)])
    assert all(isinstance(BACKEND.judge(view), Supported) for view in region.views)
    refusal = BACKEND.decline(_sketch(region))
    assert isinstance(refusal, Unsupported)
    assert refusal.code == "dtype"


@pytest.mark.parametrize("weights", ["auto", "live"])
def test_a_model(weights):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 5))
    exact, image = model.eval().double(), torch.randn(2, 3, 8, 8)
    expected = exact(image.double())
    model = model.to(HALF)
    backend = mixbackend.auto(
        {
            "backends": ["openvino", "eager"],
            "weights": weights,
            "rules": [{"match": {"op": "aten.convolution.*"}, "require": "openvino"}],
        }
    )
    with torch.no_grad():
        found = torch.compile(model, backend=backend)(image.to(HALF))
    assert "openvino" in {region["backend"] for region in backend.report().to_dict()["graphs"][0]["regions"]}
    assert not [event for event in backend.report().events if event.kind == "verify_failed"]
    torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=0.05)
