"""A buffer that a graph writes counts one write per call, as with inductor, whoever runs the region."""

from __future__ import annotations

import pytest
import torch
from counting_module import Counter
from foreign_backends import Foreign, mixture_of

from mixbackend.backends.codegen import CodegenBackend


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("who", ["eager", "codegen", "foreign", "failing"])
def test_every_call_counts_one_write(tmp_path, who, gradients):
    def fail(call):
        raise RuntimeError("no")

    backends = {
        "eager": [],
        "codegen": [CodegenBackend()],
        "foreign": [Foreign(writes_inputs=True)],
        "failing": [Foreign(fail, writes_inputs=True)],
    }[who]
    with mixture_of(*backends, folder=tmp_path) as mixture, torch.set_grad_enabled(gradients):
        model, eager = Counter(), Counter()
        compiled = torch.compile(model, backend=mixture)
        for call in range(4):
            value = torch.randn(3, 4)
            torch.testing.assert_close(compiled(value), eager(value))
            assert model.total._version == eager.total._version == call + 1
            assert model.calls._version == call + 1


def test_a_stale_saved_tensor_is_found(tmp_path):
    with mixture_of(Foreign(writes_inputs=True), folder=tmp_path) as mixture:
        model = torch.compile(Counter(), backend=mixture)
        weight = torch.randn(4, requires_grad=True)
        product = weight * model.total
        model(torch.randn(3, 4))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()
