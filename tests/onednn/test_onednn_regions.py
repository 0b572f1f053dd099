"""Whole regions: straight lines, storage, dynamic sizes, binding, threads, attention, refusals."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.nn import functional

from mixbackend.backends.onednn import OneDnnBackend
from mixbackend.backends.onednn import backend as module
from mixbackend.backends.onednn.kernels import element_types
from mixbackend.contracts import RegionSketch, check_backend

aten = torch.ops.aten


def _block(x, weight, bias, last):
    """A layer of a transformer's feed-forward part with its folding of batch and length."""
    rows = x.reshape(x.shape[0] * x.shape[1], x.shape[2])
    hidden = functional.gelu(aten.addmm(bias, rows, aten.t(weight)).reshape(x.shape[0], x.shape[1], weight.shape[0]))
    flat = hidden.reshape(x.shape[0] * x.shape[1], weight.shape[0])
    return aten.mm(flat, aten.t(last)).reshape(x.shape) + x


def _block_inputs(batch=2, length=3):
    return torch.randn(batch, length, 5), torch.randn(8, 5), torch.randn(8), torch.randn(5, 8)


def test_it_is_a_backend():
    assert check_backend(OneDnnBackend()).availability().available


def test_torchs_own_switch_is_respected():
    with torch.backends.mkldnn.flags(enabled=False):
        answer = OneDnnBackend().availability()
    assert not answer.available and "switched off" in answer.reason


def test_a_torch_without_it_is_told(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert "built without" in OneDnnBackend().availability().reason
    monkeypatch.undo()
    monkeypatch.setattr(module, "missing_operators", lambda: ("_linear_pointwise",))
    assert "_linear_pointwise" in OneDnnBackend().availability().reason


def test_a_block_is_two_calls(bench):
    built = bench.check(_block, *_block_inputs(), constants=(1, 2, 3))
    assert sorted(built.patterns) == ["linear_add", "linear_gelu"]
    assert built.compiled.strides == "as_traced"
    source = built.compiled.source
    assert source.count("linear_(") + source.count("linear_binary_(") == 2 and "gelu" in source


def test_dynamic_sizes(bench):
    built = bench.build(_block, *_block_inputs(), constants=(1, 2, 3), dynamic=True)
    weights = _block_inputs()[1:]
    for batch, length in ((2, 3), (4, 7), (3, 2)):
        built.check(torch.randn(batch, length, 5), *weights)


def test_binding_prepares_once_and_again_after_a_change(bench):
    inputs = _block_inputs()
    built = bench.build(_block, *inputs, constants=(1, 2, 3))
    weights = [item.clone() for item in inputs[1:]]
    first = built.bind([inputs[0], *weights])
    assert first.notes == ("2 weights packed",)
    assert first.constant_bytes == sum(item.numel() * 4 for item in (weights[0], weights[2]))
    (before,) = first.run([inputs[0], None, None, None])
    for item in weights:
        item.add_(1.0)
    second = built.bind([inputs[0], *weights])
    torch.testing.assert_close(second.run([inputs[0], None, None, None])[0], _block(inputs[0], *weights))
    torch.testing.assert_close(built.compiled.run([inputs[0], *weights])[0], _block(inputs[0], *weights))
    assert not torch.allclose(before, second.run([inputs[0], None, None, None])[0])


def test_one_row_keeps_plain_weights(bench):
    """Nothing is packed for a single row, and a weight that is row-major already is not copied."""
    x, weight = torch.randn(1, 5), torch.randn(8, 5)
    built = bench.build(lambda x, w: aten.mm(x, aten.t(w)), x, weight, constants=(1,))
    bound = built.bind([x, weight])
    assert bound.constant_bytes == 0 and bound.notes == ()
    turned = torch.randn(5, 8)
    built = bench.build(lambda x, w: aten.mm(x, w), x, turned, constants=(1,))
    assert built.bind([x, turned]).constant_bytes == 4 * turned.numel()
    built.check(x, turned)


def test_one_row_of_bfloat16_reads_a_packed_weight(bench):
    """As it lies, it takes three times as long to read."""
    x, weight = torch.randn(1, 64).bfloat16(), torch.randn(96, 64).bfloat16()
    if torch.bfloat16 not in element_types():
        assert {item.code for item in bench.refusals(lambda x, w: aten.mm(x, aten.t(w)), x, weight)} == {"dtype"}
        return
    built = bench.build(lambda x, w: aten.mm(x, aten.t(w)), x, weight, constants=(1,))
    assert built.bind([x, weight]).notes == ("1 weights packed",)
    built.check(x, weight)


def test_live_weights_need_no_binding(bench):
    assert bench.build(_block, *_block_inputs()).compiled.bind is None


def test_results_are_fresh(bench):
    built = bench.build(lambda x, w: (p := aten.mm(x, w), aten.mm(p, x)), torch.randn(4, 4), torch.randn(4, 4))
    inputs = [torch.randn(4, 4), torch.randn(4, 4)]
    kept = built.compiled.run(inputs)
    copies = [item.clone() for item in kept]
    built.compiled.run([torch.randn(4, 4), torch.randn(4, 4)])
    assert all(torch.equal(one, other) for one, other in zip(kept, copies, strict=True))
    storages = {item.untyped_storage().data_ptr() for item in (*kept, *inputs)}
    assert len(storages) == 4


def test_results_made_of_constants_are_fresh_too(bench):
    x, weight = torch.randn(4, 5), torch.randn(6, 5)
    # The weight is the first input of the region: inputs come in the order in which they are used.
    function = lambda x, w: (c := w.clone().t(), aten.mm(x, c))  # noqa: E731
    run = bench.check(function, x, weight, constants=(1,)).bind([x, weight]).run
    run([None, x])[0].zero_()
    torch.testing.assert_close(run([None, x])[0], weight.t())
    torch.testing.assert_close(run([None, x])[1], x @ weight.t())


@pytest.mark.parametrize("operation", ["add", "mul"])
def test_a_residual_is_never_written_into(bench, operation):
    function = lambda x, w, r: getattr(torch, operation)(aten.mm(x, w), r)  # noqa: E731
    residual = torch.randn(4, 6)
    built = bench.build(function, torch.randn(4, 5), torch.randn(5, 6), residual)
    before = residual.clone()
    (result,) = built.compiled.run([torch.randn(4, 5), torch.randn(5, 6), residual])
    assert torch.equal(residual, before) and result.data_ptr() != residual.data_ptr()


def test_threads_share_a_region(bench):
    inputs = _block_inputs()
    built = bench.build(_block, *inputs, constants=(1, 2, 3))
    run = built.bind(list(inputs)).run
    expected = _block(*inputs)
    wrong = []

    def work():
        for _ in range(20):
            if not torch.allclose(run([inputs[0], None, None, None])[0], expected, atol=1e-4):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def _attention(query, key, value, mask):
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=mask)[0]


def test_attention_between_products(bench):
    def layer(x, w, mask):
        query, key, value = (part.reshape(2, 7, 3, 4).transpose(1, 2) for part in aten.mm(x, w).split(12, 1))
        mixed = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=mask)[0]
        return aten.mm(mixed.transpose(1, 2).reshape(14, 12), w[:, :5])

    built = bench.check(layer, torch.randn(14, 12), torch.randn(12, 36), torch.randn(2, 1, 7, 7), constants=(1,))
    assert built.compiled.source.count("linear_(") == 2


def test_attention_and_its_backward(bench):
    def both(grad, query, key, value):
        out, sums = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, is_causal=True)
        operator = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return operator(grad, query, key, value, out, sums, 0.0, True)

    bench.check(both, *(torch.randn(2, 3, 7, 4) for _ in range(4)))


def test_dropout_inside_attention_is_refused(bench):
    function = lambda q: aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.5)[0]  # noqa: E731
    assert {item.code for item in bench.refusals(function, torch.randn(2, 3, 7, 4))} == {"random"}


def test_what_has_no_kernel_is_refused(bench):
    function = lambda x: torch.sin(x).cumsum(0)  # noqa: E731
    assert [item.code for item in bench.refusals(function, torch.randn(4))] == ["unknown-op", "unknown-op"]


def test_views_alone_are_declined(bench):
    plan = bench.plan(lambda x: x.t().reshape(-1).clone(), torch.randn(3, 4))
    assert {item.backend for item in plan.regions} == {"eager"}
    sketch = RegionSketch((), (), (), 0.0)
    assert bench.backend.decline(sketch) is not None
