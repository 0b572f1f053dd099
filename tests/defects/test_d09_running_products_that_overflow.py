"""D9: a running product of a 16-bit type that has left the range of float32 stays infinite, as eager's does."""

from __future__ import annotations

import pytest
import torch

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.graph.trace import trace_region

STEPS = {
    torch.bfloat16: [3e38, 4.0, 0.25, 0.25, 0.5, 2.0],
    torch.float16: [60000.0, 4.0, 0.25, 0.25, 0.5, 2.0],
    torch.float32: [3e38, 4.0, 0.25, 0.25, 0.5, 2.0],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dim", [0, 1], ids=["columns", "rows"])
@pytest.mark.parametrize("dtype", STEPS, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_products_leave_their_range_as_eagers_do(dtype: torch.dtype, dim: int) -> None:
    steps = torch.tensor(STEPS[dtype], dtype=dtype)
    x = torch.ones(40, 40, dtype=dtype)
    x[:6] = steps[:, None]
    x = x if dim == 0 else x.t().contiguous()
    run = CodegenBackend().compile(trace_region(lambda x: torch.cumprod(x, dim), [x])).run
    torch.testing.assert_close(run([x])[0], torch.cumprod(x, dim), rtol=0.02, atol=0)
