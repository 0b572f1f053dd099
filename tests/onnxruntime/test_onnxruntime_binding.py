"""Constants as initialisers: seen by the optimiser, not copied, of every kind and layout, in another process too."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections import Counter

import onnx
import pytest
import torch
from torch.nn import functional

from mixbackend.backends.onnxruntime import OnnxRuntimeBackend
from mixbackend.backends.onnxruntime.binding import bind_model
from mixbackend.backends.onnxruntime.boundary import boundary
from mixbackend.backends.onnxruntime.session import BORROWS, open_session, runner
from mixbackend.contracts import InputRole
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_region


def _region(function, inputs, constants, dynamic=False):
    roles = {place: PlaceholderRole(InputRole.CONSTANT, f"w{place}") for place in constants}
    return trace_region(function, inputs, roles=roles, dynamic=dynamic)


def _ordered(region, inputs):
    """Values by the region's own order: placeholders are named after the function's arguments."""
    names = {item.name: place for place, item in enumerate(region.inputs)}
    listed = sorted(names, key=lambda name: int(name.rsplit("_", 1)[0].removeprefix("arg")) if "arg" in name else 0)
    given = dict(zip(listed, inputs, strict=True))
    return [given[item.name] for item in region.inputs]


def _constants(region, values):
    return [
        value if item.role is InputRole.CONSTANT else None for item, value in zip(region.inputs, values, strict=True)
    ]


def _hidden(region, values):
    """The values with the constants taken out: a bound run must not look at them."""
    return [
        None if item.role is InputRole.CONSTANT else value for item, value in zip(region.inputs, values, strict=True)
    ]


def _bound(function, inputs, constants):
    region = _region(function, inputs, constants)
    compiled = OnnxRuntimeBackend().compile(region)
    values = _ordered(region, inputs)
    bound = compiled.bind(_constants(region, values))
    return region, compiled, values, bound


def _optimized(region, compiled, constants, path, borrow=BORROWS):
    """Operators of the optimised model, and how many inputs it has."""
    entrances, _ = boundary(region, onnx.load_model_from_string(compiled.artifact))
    if constants is None:
        open_session(compiled.artifact, static=True, doubles=False, optimized=str(path))
    else:
        bound = bind_model(compiled.artifact, entrances, constants)
        given = {"names": bound.names, "values": bound.values, "borrow": borrow}
        open_session(bound.serialised, static=True, doubles=False, optimized=str(path), **given)
    graph = onnx.load(str(path)).graph
    return Counter(node.op_type for node in graph.node), len(graph.input)


def _block(x, weight, scale, shift, mean):
    norm = torch.ops.aten._native_batch_norm_legit_no_training
    y = norm(torch.conv2d(x, weight, None, 1, 1), scale, shift, mean, scale.abs() + 0.5, 0.1, 1e-5)[0]
    return functional.relu(y)


@pytest.mark.parametrize("width", [16, 512], ids=["statistics written into the model", "statistics external"])
def test_optimizer_sees_bound_values(tmp_path, width):
    """Batch norm disappears into the convolution, which takes the activation in and gets the blocked layout."""
    inputs = [torch.randn(1, 16, 8, 8), torch.randn(width, 16, 3, 3), *[torch.rand(width) for _ in range(3)]]
    region, compiled, values, bound = _bound(_block, inputs, (1, 2, 3, 4))
    live, taken = _optimized(region, compiled, None, tmp_path / "live.onnx")
    fused, left = _optimized(region, compiled, _constants(region, values), tmp_path / "bound.onnx")
    assert (taken, left) == (5, 1)
    assert live["BatchNormalization"] == 1
    assert fused["BatchNormalization"] == 0
    assert (live["Relu"], fused["Relu"]) == (1, 0)
    (expected,) = region.graph_module.forward(*values)
    torch.testing.assert_close(bound.run(_hidden(region, values))[0], expected, rtol=1e-4, atol=1e-4)


def _layer(x, q, k, v, out, up, down, scale, shift):
    def heads(value):
        return value.view(2, 9, 4, 8).transpose(1, 2)

    attended = functional.scaled_dot_product_attention(*(heads(functional.linear(x, item)) for item in (q, k, v)))
    x = functional.layer_norm(x + functional.linear(attended.transpose(1, 2).reshape(2, 9, 32), out), [32], scale)
    inner = functional.linear(functional.gelu(functional.linear(x, up, shift)), down)
    x = x + inner
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale


_SHAPES = [(32, 32)] * 4 + [(64, 32), (32, 64), (32,), (64,)]


def test_a_transformer_layer_is_fused(tmp_path):
    """One attention operator on rows of all heads, no transposes, no inverse roots, no separate norms."""
    inputs = [torch.randn(2, 9, 32), *[torch.randn(shape) / 6 for shape in _SHAPES]]
    region, compiled, values, bound = _bound(_layer, inputs, range(1, 9))
    found, left = _optimized(region, compiled, _constants(region, values), tmp_path / "bound.onnx")
    assert left == 1
    assert (found["Attention"], found["Gemm"], found["LayerNormalization"]) == (1, 6, 1)
    assert found["SimplifiedLayerNormalization"] == 1
    assert found["Transpose"] == found["Softmax"] == found["Reciprocal"] == found["Sqrt"] == 0
    (expected,) = region.graph_module.forward(*values)
    torch.testing.assert_close(bound.run(_hidden(region, values))[0], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled.run(values)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not BORROWS, reason="this release copies constants")
@pytest.mark.parametrize(("function", "shapes"), [(_layer, _SHAPES), (_block, [(512, 16, 3, 3), *[(512,)] * 3])])
def test_constants_that_are_read_in_place_make_the_code_of_copies(tmp_path, function, shapes):
    image = torch.randn(2, 9, 32) if function is _layer else torch.randn(1, 16, 8, 8)
    inputs = [image, *[torch.rand(shape) / 6 for shape in shapes]]
    region, compiled, values, bound = _bound(function, inputs, range(1, len(inputs)))
    constants = _constants(region, values)
    found = [_optimized(region, compiled, constants, tmp_path / "bound.onnx", borrow) for borrow in (True, False)]
    assert found[0] == found[1]
    entrances, exits = boundary(region, onnx.load_model_from_string(compiled.artifact))
    model = bind_model(compiled.artifact, entrances, constants)
    given = {"names": model.names, "values": model.values, "borrow": False}
    copied = runner(open_session(model.serialised, static=True, doubles=False, **given), entrances, exits, ())
    assert torch.equal(bound.run(_hidden(region, values))[0], copied(_hidden(region, values))[0])


def _linear(x, weight, bias):
    return torch.relu(x @ weight + bias)


def test_rebinding_gives_new_results_and_old_code_keeps_working():
    inputs = [torch.randn(4, 48), torch.randn(48, 40), torch.randn(40)]
    region, compiled, values, first = _bound(_linear, inputs, (1, 2))
    before = first.run(_hidden(region, values))[0]
    torch.testing.assert_close(before, _linear(*inputs))
    inputs[1].mul_(2)
    second = compiled.bind(_constants(region, values))
    torch.testing.assert_close(second.run(_hidden(region, values))[0], _linear(*inputs))
    assert torch.isfinite(first.run(_hidden(region, values))[0]).all()
    other = [inputs[0], torch.randn(48, 40), torch.randn(40)]
    third = compiled.bind(_constants(region, _ordered(region, other)))
    torch.testing.assert_close(third.run(_hidden(region, values))[0], _linear(*other))
    torch.testing.assert_close(second.run(_hidden(region, values))[0], _linear(*inputs))
    torch.testing.assert_close(compiled.run(values)[0], _linear(*inputs))


def test_constants_may_die_after_binding():
    inputs = [torch.randn(4, 48), torch.randn(48, 40), torch.randn(40)]
    expected = _linear(*inputs)
    region, _, values, bound = _bound(_linear, inputs, (1, 2))
    hidden = _hidden(region, values)
    del inputs, values
    gc.collect()
    rubbish = [torch.full((48, 40), 7.0) for _ in range(50)]
    torch.testing.assert_close(bound.run(hidden)[0], expected)
    assert len(rubbish) == 50


@pytest.mark.parametrize(
    "weight",
    [
        torch.randn(40, 48).t(),
        torch.randn(48, 80)[:, ::2],
        torch.randn(40).expand(48, 40),
        torch.randn(48 * 40 + 3)[3:].view(48, 40),
        torch.randn(1, 40).expand(48, 40),
    ],
    ids=["transposed", "gaps", "spread", "offset", "spread rows"],
)
def test_strides_of_constants(weight):
    inputs = [torch.randn(4, 48), weight, torch.randn(40)]
    region, compiled, values, bound = _bound(_linear, inputs, (1, 2))
    torch.testing.assert_close(bound.run(_hidden(region, values))[0], _linear(*inputs))
    torch.testing.assert_close(compiled.run(values)[0], _linear(*inputs))
    # Other strides than those traced, in the bound values.
    dense = _ordered(region, [inputs[0], weight.clone(memory_format=torch.contiguous_format), inputs[2]])
    again = compiled.bind(_constants(region, dense))
    torch.testing.assert_close(again.run(_hidden(region, dense))[0], _linear(*inputs))


def test_a_transposed_weight_is_not_copied():
    weight = torch.randn(64, 48).t()
    inputs = [torch.randn(4, 48), weight, torch.randn(64)]
    region, compiled, values, bound = _bound(lambda x, w, b: torch.addmm(b, x, w), inputs, (1, 2))
    assert "transB" in compiled.source
    assert "Transpose" not in compiled.source
    assert bound.constant_bytes == weight.nbytes
    torch.testing.assert_close(bound.run(_hidden(region, values))[0], torch.addmm(inputs[2], *inputs[:2]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.float64])
@pytest.mark.parametrize("size", [3, 5000])
def test_element_types_of_constants(dtype, size):
    value = (torch.arange(size) % 3).to(dtype)
    inputs = [torch.ones(size, dtype=dtype), value]
    function = lambda x, c: (torch.where(c.to(torch.bool), x, c), c.reshape(1, -1).clone())  # noqa: E731
    region, _, values, bound = _bound(function, inputs, (1,))
    for actual, expected in zip(bound.run(_hidden(region, values)), region.graph_module.forward(*values), strict=True):
        assert torch.equal(actual, expected)


def test_empty_constants():
    inputs = [torch.randn(3, 4), torch.randn(0, 4)]
    region, _, values, bound = _bound(lambda x, c: torch.cat([x, c]) * 2, inputs, (1,))
    assert torch.equal(bound.run(_hidden(region, values))[0], inputs[0] * 2)


def test_results_of_constants_alone_are_fresh_at_every_call():
    inputs = [torch.randn(64, 64), torch.randn(64, 64)]
    region, _, values, bound = _bound(lambda a, b: (a @ b, a.reshape(-1), b.clone()), inputs, (0, 1))
    hidden = _hidden(region, values)
    first = bound.run(hidden)
    kept = [item.clone() for item in first]
    for item in first:
        item.zero_()
    for actual, expected in zip(bound.run(hidden), kept, strict=True):
        assert torch.equal(actual, expected)
    assert inputs[0].abs().sum() > 0


def test_sizes_known_at_run_time():
    inputs = [torch.randn(5, 48), torch.randn(48, 40), torch.randn(40)]
    roles = {1: PlaceholderRole(InputRole.CONSTANT, "w"), 2: PlaceholderRole(InputRole.CONSTANT, "b")}
    region = trace_region(lambda x, w, b: functional.layer_norm(x @ w + b, [40]), inputs, roles=roles, dynamic=True)
    compiled = OnnxRuntimeBackend().compile(region)
    assert any(item.role is InputRole.CONSTANT for item in region.inputs)

    def listed(rows):
        by_rank = {2: [torch.randn(rows, 48), inputs[1]], 1: [inputs[2]]}
        given = []
        for item in region.inputs:
            if not hasattr(item.meta, "rank"):
                given.append({5: rows}.get(item.meta.hint, item.meta.hint))
            elif item.role is InputRole.CONSTANT:
                given.append(by_rank[item.meta.rank][-1])
            else:
                given.append(by_rank[2][0])
        return given

    bound = compiled.bind(_constants(region, listed(5)))
    for rows in (2, 9):
        values = listed(rows)
        (x,) = [item for item in _hidden(region, values) if isinstance(item, torch.Tensor)]
        expected = functional.layer_norm(x @ inputs[1] + inputs[2], [40])
        torch.testing.assert_close(bound.run(_hidden(region, values))[0], expected, rtol=1e-4, atol=1e-5)


def test_wrong_values_are_refused():
    inputs = [torch.randn(4, 48), torch.randn(48, 40), torch.randn(40)]
    region, compiled, values, _ = _bound(_linear, inputs, (1, 2))
    for wrong in (None, torch.randn(40, 48), torch.randn(48, 40).double()):
        constants = _constants(region, values)
        constants[1] = wrong
        with pytest.raises(ValueError, match="in1"):
            compiled.bind(constants)


def test_regions_without_constants_do_not_bind():
    region = _region(_linear, [torch.randn(4, 8), torch.randn(8, 3), torch.randn(3)], ())
    assert OnnxRuntimeBackend().compile(region).bind is None


_MEMORY = """
import json, resource, sys, time, torch
from mixbackend.backends.onnxruntime import OnnxRuntimeBackend
from mixbackend.contracts import InputRole
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_region
def layer(x, a, b): return x @ a @ b
inputs = [torch.randn(1, 4096), *[torch.randn(4096, 4096).mul_(0.01).t() for _ in range(2)]]
roles = {place: PlaceholderRole(InputRole.CONSTANT, "w") for place in (1, 2)}
region = trace_region(layer, inputs, roles=roles)
small = trace_region(layer, [torch.randn(64, 64) for _ in range(3)], roles=roles)
backend = OnnxRuntimeBackend()
backend.compile(small).bind([None, *[torch.randn(64, 64) for _ in range(2)]])
compiled = backend.compile(region)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
bound = compiled.bind([None, *inputs[1:]])
result, after = bound.run([inputs[0], None, None])[0], peak()
error = (result - layer(*inputs)).abs().max().item()
print(json.dumps([before, after, bound.constant_bytes >> 20, len(compiled.artifact), error]))
"""


def test_memory_is_not_doubled():
    """128 MiB of weights: what is added is the packed copy and nothing on the way to it."""
    done = subprocess.run([sys.executable, "-c", _MEMORY], capture_output=True, text=True, check=True)
    before, after, own, text, error = json.loads(done.stdout.splitlines()[-1])
    assert own == 128
    assert after - before < 1.3 * 128
    assert text < 10_000
    assert error < 1e-3


_ELSEWHERE = """
import sys, torch
from mixbackend.backends.onnxruntime import OnnxRuntimeBackend
from mixbackend.contracts import InputRole
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_region
x, w, b = torch.load(sys.argv[1])
roles = {place: PlaceholderRole(InputRole.CONSTANT, "w") for place in (1, 2)}
region = trace_region(lambda x, w, b: torch.relu(x @ w + b), [x, w, b], roles=roles)
compiled = OnnxRuntimeBackend().load(region, open(sys.argv[2], "rb").read())
bound = compiled.bind([None, w, b])
torch.testing.assert_close(bound.run([x, None, None])[0], torch.relu(x @ w + b))
torch.testing.assert_close(compiled.run([x, w, b])[0], torch.relu(x @ w + b))
print("agrees")
"""


def test_tables_are_shared_with_torch():
    """What the runtime neither folds nor packs stays where it is; a write into it is seen."""
    inputs = [torch.tensor([0, 2]), torch.randn(400, 40)]
    region = _region(lambda ids, table: functional.embedding(ids, table), inputs, (1,))
    values = {2: inputs[1], 1: inputs[0]}
    values = [values[item.meta.rank] for item in region.inputs]
    bound = OnnxRuntimeBackend().compile(region).bind(_constants(region, values))
    assert bound.constant_bytes == 0
    inputs[1][2] = 7.0
    assert torch.equal(bound.run(_hidden(region, values))[0], inputs[1][[0, 2]])


def test_tables_live_as_long_as_the_code_that_reads_them():
    ids, table = torch.tensor([0, 2]), torch.randn(400, 40)
    region = _region(lambda ids, table: functional.embedding(ids, table), [ids, table], (1,))
    expected, places = table[ids], [item.meta.rank for item in region.inputs]
    bound = OnnxRuntimeBackend().compile(region).bind([table if rank == 2 else None for rank in places])
    del table
    gc.collect()
    rubbish = [torch.full((400, 40), 7.0) for _ in range(50)]
    assert torch.equal(bound.run([None if rank == 2 else ids for rank in places])[0], expected)
    assert len(rubbish) == 50


def test_artifacts_are_bound_in_another_process(tmp_path):
    inputs = [torch.randn(4, 48), torch.randn(40, 48).t(), torch.randn(40)]
    region = _region(_linear, inputs, (1, 2))
    torch.save(inputs, tmp_path / "inputs.pt")
    (tmp_path / "artifact").write_bytes(OnnxRuntimeBackend().compile(region).artifact)
    arguments = [sys.executable, "-c", _ELSEWHERE, str(tmp_path / "inputs.pt"), str(tmp_path / "artifact")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert "agrees" in done.stdout, done.stderr


def test_values_that_the_optimizer_transposes_in_place_are_not_put_back() -> None:
    """A transpose moves through a product with a constant, which is transposed under its own name."""

    def scaled(x, weight, scale, shift):
        rows = (x.permute(0, 2, 3, 1) @ weight).permute(0, 3, 1, 2)
        return (rows * scale + shift).permute(0, 2, 3, 1) @ weight

    inputs = [
        torch.randn(1, 512, 3, 5),
        torch.randn(512, 512) / 20,
        torch.randn(1, 512, 1, 1),
        torch.randn(1, 512, 3, 5),
    ]
    region, _, values, bound = _bound(scaled, inputs, (1, 2, 3))
    (found,) = bound.run(_hidden(region, values))
    torch.testing.assert_close(found, scaled(*inputs), rtol=1e-4, atol=1e-4)
