"""What certification found in our own backends: claims that did not hold."""

from __future__ import annotations

import torch

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.contracts import Supported
from mixbackend.execute.kept_inputs import checksum
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
