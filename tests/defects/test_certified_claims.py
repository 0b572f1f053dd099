"""What certification found in our own backends: claims that did not hold."""

from __future__ import annotations

import pytest
import torch

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.inductor import InductorBackend
from mixbackend.contracts import InputRole, Supported, Unsupported
from mixbackend.contracts.torch_compat import storages_in_use, storages_of
from mixbackend.execute.kept_inputs import checksum
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_region


def test_shuffled_channels_of_symbolic_number_compile() -> None:
    """Before: the channels of a group were a quotient of sizes that has no text, and compiling raised."""
    region = trace_region(lambda x: torch.channel_shuffle(x, 2), [torch.randn(3, 4, 5)], dynamic=True)
    backend = CodegenBackend()
    assert all(isinstance(backend.judge(view), Supported) for view in region.views)
    compiled = backend.compile(region)
    for shape in ((3, 4, 5), (2, 8, 7), (3, 4, 5)):
        value = torch.randn(shape)
        (result,) = compiled.run([value])
        assert torch.equal(result, torch.channel_shuffle(value, 2))


def test_windows_of_symbolic_size_are_refused_before_inductor_compiles() -> None:
    """Before: inductor claimed such convolutions, and compiling raised, for what it assumes cannot be stated."""
    given = [torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3)]
    window = trace_region(torch.nn.functional.conv2d, given, dynamic=True)
    (verdict,) = [InductorBackend().judge(view) for view in window.views]
    assert isinstance(verdict, Unsupported) and verdict.code == "dynamic-shape"
    fixed = trace_region(torch.nn.functional.conv2d, given)
    assert isinstance(InductorBackend().judge(fixed.views[0]), Supported)


def test_weights_that_nobody_holds_any_more_are_free() -> None:
    """Before: code of ONNX Runtime that ran with live weights held the last of them for as long as it lived."""
    pytest.importorskip("onnxruntime")
    from mixbackend.backends.onnxruntime import OnnxRuntimeBackend

    roles = {1: PlaceholderRole(InputRole.CONSTANT)}
    region = trace_region(torch.mm, [torch.randn(2, 3), torch.randn(3, 4)], roles=roles)
    compiled = OnnxRuntimeBackend().compile(region)
    value, weight = torch.randn(2, 3), torch.nn.Parameter(torch.randn(3, 4))
    for _ in range(2):
        torch.testing.assert_close(compiled.run([value, weight])[0], value @ weight.detach())
    held = storages_of([weight])
    del weight
    assert not storages_in_use(held)


def test_weights_with_gaps_are_watched() -> None:
    """Before: the checksum of a vector with gaps between its elements raised, and the call went unchecked."""
    wide = torch.randn(9)
    gapped = wide[1::2]
    before = checksum(gapped)
    assert torch.equal(before, checksum(gapped.clone()))
    wide[0] = 5.0
    assert torch.equal(before, checksum(gapped)), "what lies in the gaps is nobody's"
    wide[3] = 5.0
    assert not torch.equal(before, checksum(gapped))
