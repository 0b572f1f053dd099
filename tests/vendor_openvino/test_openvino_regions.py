"""The plug-in on pieces of real networks: a BERT layer, a ResNet block, other sizes, artifacts, its own form."""

from __future__ import annotations

import ast
import re
from importlib import metadata
from pathlib import Path

import pytest
import torch
from mixbackend_openvino.backend import OpenVinoBackend

from mixbackend.compile.replay import make_inputs
from mixbackend.contracts import DeviceModel, InputRole, Supported, check_backend, check_contract_version
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_region

PLUGIN = Path(__file__).parents[2] / "examples" / "vendor_openvino"

aten = torch.ops.aten
BACKEND = OpenVinoBackend()
R = torch.randn(12)


def bert_layer(x, qkv, qkv_bias, out, out_bias, up, up_bias, down, down_bias, scale, shift):
    batch, length, width = x.shape

    def linear(value, weight, bias):
        flat = aten.reshape(value, [batch * length, value.shape[2]])
        return aten.reshape(aten.addmm(bias, flat, aten.t(weight)), [batch, length, weight.shape[0]])

    def heads(value):
        return aten.transpose(aten.reshape(value, [batch, length, 2, width // 2]), 1, 2)

    query, key, value = (heads(part) for part in aten.split(linear(x, qkv, qkv_bias), width, 2))
    mixed = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)[0]
    mixed = aten.reshape(aten.transpose(mixed, 1, 2), [batch, length, width])
    x = aten.native_layer_norm(aten.add(x, linear(mixed, out, out_bias)), [width], scale, shift, 1e-12)[0]
    hidden = aten.gelu(linear(x, up, up_bias))
    return aten.native_layer_norm(aten.add(x, linear(hidden, down, down_bias)), [width], scale, shift, 1e-12)[0]


def bert_inputs(batch=2, length=6, width=8):
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    linears = [tensor for shape in shapes for tensor in (torch.randn(shape) * 0.3, torch.randn(shape[0]))]
    return [torch.randn(batch, length, width), *linears, torch.randn(width), torch.randn(width)]


def resnet_block(x, first, second, scale, shift, mean, variance):
    def normal(value):
        return aten._native_batch_norm_legit_no_training(value, scale, shift, mean, variance, 0.1, 1e-5)[0]

    y = aten.convolution(x, first, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    y = aten.convolution(aten.relu(normal(y)), second, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    return aten.relu(aten.add(normal(y), x))


def block_inputs(batch=2, size=9):
    weights = [torch.randn(8, 8, 3, 3) * 0.1 for _ in range(2)]
    return [torch.randn(batch, 8, size, size), *weights, *(torch.randn(8) for _ in range(3)), torch.rand(8) + 0.5]


def assert_right(region, run, inputs):
    expected = region.graph_module.forward(*inputs)
    outputs = list(run(inputs))
    for mine, eager in zip(outputs, expected, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
    return outputs


@pytest.mark.parametrize(("function", "inputs"), [(bert_layer, bert_inputs), (resnet_block, block_inputs)])
def test_static_regions_see_weight_updates_and_return_fresh_storage(function, inputs):
    region = trace_region(function, inputs())
    refused = [verdict for view in region.views if not isinstance(verdict := BACKEND.judge(view), Supported)]
    assert refused == []
    compiled = BACKEND.compile(region)
    values = [item.abs() for item in make_inputs(region)]
    first = assert_right(region, compiled.run, values)
    kept = [item.clone() for item in first]
    for weight in values[1:]:
        weight.mul_(0.9)
    second = assert_right(region, compiled.run, values)
    assert all(torch.equal(now, then) for now, then in zip(first, kept, strict=True))
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(first, second, strict=True))


def _with_constants(function, inputs, places):
    roles = {place: PlaceholderRole(InputRole.CONSTANT, f"w{place}") for place in places}
    region = trace_region(function, inputs, roles=roles)
    compiled = BACKEND.compile(region)
    return region, compiled


def _split(region, values):
    """The constants alone, and the values without them."""
    constant = [item.role is InputRole.CONSTANT for item in region.inputs]
    return (
        [value if is_constant else None for value, is_constant in zip(values, constant, strict=True)],
        [None if is_constant else value for value, is_constant in zip(values, constant, strict=True)],
    )


@pytest.mark.parametrize(("function", "inputs"), [(bert_layer, bert_inputs), (resnet_block, block_inputs)])
def test_bound_regions_know_their_constants(function, inputs):
    region, compiled = _with_constants(function, inputs(), range(1, len(inputs())))
    values = [item.abs() for item in make_inputs(region)]
    constants, hidden = _split(region, values)
    bound = compiled.bind(constants)
    assert bound.constant_bytes > 0
    (expected,) = assert_right(region, lambda _: bound.run(hidden), values)
    assert_right(region, compiled.run, values)
    for constant in constants:
        if constant is not None:
            constant.mul_(0.9)
    again = compiled.bind(constants)
    assert_right(region, lambda _: again.run(hidden), values)
    assert not torch.equal(again.run(hidden)[0], expected)


@pytest.mark.parametrize(
    "weight",
    [
        torch.randn(12, 8).t(),
        torch.randn(8, 24)[:, ::2],
        torch.randn(12).expand(8, 12),
        torch.randn(99)[3:].view(8, 12),
    ],
    ids=["transposed", "gaps", "spread", "offset"],
)
def test_strides_of_constants(weight):
    region, compiled = _with_constants(lambda x, w, b: torch.addmm(b, x, w), [torch.randn(3, 8), weight, R], (1, 2))
    values = [{(3, 8): torch.randn(3, 8), (8, 12): weight, (12,): R}[tuple(i.meta.shape)] for i in region.inputs]
    constants, hidden = _split(region, values)
    bound = compiled.bind(constants)
    assert_right(region, lambda _: bound.run(hidden), values)


def test_constants_may_die_after_binding():
    _, compiled = _with_constants(torch.mm, [torch.randn(3, 64), torch.randn(64, 64)], (1,))
    values = [torch.randn(3, 64), torch.randn(64, 64)]
    expected = torch.mm(*values)
    bound = compiled.bind([None, values[1]])
    x = values[0]
    del values
    rubbish = [torch.full((64, 64), 7.0) for _ in range(50)]
    torch.testing.assert_close(bound.run([x, None])[0], expected, rtol=1e-4, atol=1e-4)
    assert len(rubbish) == 50


def test_inputs_at_changing_addresses_and_in_the_order_of_calls():
    """More addresses than are remembered, then the first again; results stay what they were."""
    _, compiled = _with_constants(torch.add, [torch.randn(3, 4), torch.ones(3, 4)], (1,))
    bound = compiled.bind([None, torch.ones(3, 4)])
    given = [torch.full((3, 4), float(number)) for number in range(80)]
    results = [bound.run([item, None])[0] for item in [*given, *given[:5], given[3].t().contiguous().t()]]
    for item, result in zip([*given, *given[:5], given[3]], results, strict=True):
        assert torch.equal(result, item + 1)
    given[0].fill_(9.0)
    assert torch.equal(bound.run([given[0], None])[0], given[0] + 1)


def test_dynamic_region_serves_other_sizes():
    def mixer(x, weight, bias):
        flat = aten.reshape(x, [x.shape[0] * x.shape[1], x.shape[2]])
        y = aten.reshape(aten.addmm(bias, flat, aten.t(weight)), [x.shape[0], x.shape[1], weight.shape[0]])
        return aten._softmax(aten.gelu(y), -1, False), aten.mean(aten.transpose(y, 0, 1), [-1])

    shapes = lambda b, t, d, h: [torch.randn(b, t, d), torch.randn(h, d), torch.randn(h)]  # noqa: E731
    region = trace_region(mixer, shapes(2, 5, 16, 24), dynamic=True)
    assert all(isinstance(BACKEND.judge(view), Supported) for view in region.views)
    compiled = BACKEND.compile(region)
    for sizes in ((2, 5, 16, 24), (4, 3, 8, 6)):
        inputs = make_inputs(trace_region(mixer, shapes(*sizes), dynamic=True))
        first = assert_right(region, compiled.run, inputs)
        second = assert_right(region, compiled.run, inputs)
        assert first[0].data_ptr() != second[0].data_ptr()


def test_non_contiguous_inputs_and_parameters():
    region = trace_region(lambda x, w: aten.mm(aten.relu(x), w), [torch.randn(3, 4), torch.randn(4, 5)])
    weight = torch.nn.Parameter(torch.randn(5, 4)).t()
    x = torch.randn(4, 3).t()
    result = BACKEND.compile(region).run([x, weight])[0]
    torch.testing.assert_close(result, torch.relu(x) @ weight.detach())


def test_numbers_that_a_region_computes_for_itself():
    def inner(x, weight):
        both = aten.cat([aten.mm(x, weight)] * 2, 0)
        return aten.reshape(both, [aten.sym_size.int(both, 0) * aten.sym_size.int(both, 1) // 4, 4])

    region = trace_region(inner, [torch.randn(4, 6), torch.randn(6, 8)], dynamic=True)
    assert "aten.sym_size" in str(region.graph_module.graph)
    compiled = BACKEND.compile(region)
    for rows, columns in ((4, 8), (3, 10)):
        sample = [torch.randn(rows, 6), torch.randn(6, columns)]
        assert_right(region, compiled.run, make_inputs(trace_region(inner, sample, dynamic=True)))


def test_training_forward_gives_what_the_backward_needs():
    region = trace_region(
        lambda x, w, b: aten.native_layer_norm(x, [6], w, b, 1e-5),
        [torch.randn(4, 6), torch.randn(6), torch.randn(6)],
        phase="forward",
    )
    assert len(region.outputs) == 3
    assert_right(region, BACKEND.compile(region).run, make_inputs(region))


def test_artifacts_load_back():
    region = trace_region(resnet_block, block_inputs())
    compiled = BACKEND.compile(region)
    inputs = [item.abs() for item in make_inputs(region)]
    loaded = BACKEND.load(region, compiled.artifact)
    assert torch.equal(loaded.run(inputs)[0], compiled.run(inputs)[0])
    with pytest.raises(Exception, match=r".+"):
        BACKEND.load(region, b"not a model")


def test_identity():
    check_backend(BACKEND)
    check_contract_version(BACKEND.name, BACKEND.contract_version)
    assert BACKEND.availability().available
    assert BACKEND.availability().version == metadata.version("openvino")
    device = DeviceModel("cpu", (("float32", 1e11),), 1e10, 1e6, 1e11, 3e-6, 1)
    assert BACKEND.prior(device).rate("matmul", "float32").flops_per_s == pytest.approx(0.9e11)


def test_it_stands_on_the_contract_alone_and_stays_small():
    lines = 0
    for file in (PLUGIN / "src").rglob("*.py"):
        text = file.read_text()
        lines += sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("#"))
        for node in ast.walk(ast.parse(text)):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            names = [module] if module else [a.name for a in node.names] if isinstance(node, ast.Import) else []
            ours = [name for name in names if name.startswith("mixbackend") and not name.startswith("mixbackend_")]
            assert set(ours) <= {"mixbackend.contracts"}, file
    assert lines <= 510
    entry = 'entry-points."mixbackend.backends"]\nopenvino = "mixbackend_openvino.backend:OpenVinoBackend"'
    assert re.search(re.escape(entry), (PLUGIN / "pyproject.toml").read_text())


@pytest.mark.parametrize("reduction", ["mean", "sum", "amax", "amin"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_a_single_number_is_its_own_reduction(reduction, keepdim):
    region = trace_region(lambda x: getattr(x * 2, reduction)(-1, keepdim=keepdim), [torch.tensor(3.5)])
    assert_right(region, BACKEND.compile(region).run, [torch.tensor(3.5)])
