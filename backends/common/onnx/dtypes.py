"""Element types: torch dtypes and their ONNX numbers.

Place: under the graph builder and the runtime of ONNX backends.
Non-goals: complex and quantised types; ONNX graphs of ours never hold them.
"""

from __future__ import annotations

from functools import lru_cache

import torch

ONNX_NUMBER: dict[torch.dtype, int] = {
    torch.float32: 1,
    torch.uint8: 2,
    torch.int8: 3,
    torch.int16: 5,
    torch.int32: 6,
    torch.int64: 7,
    torch.bool: 9,
    torch.float16: 10,
    torch.float64: 11,
    torch.bfloat16: 16,
}
TORCH_DTYPE: dict[int, torch.dtype] = {number: dtype for dtype, number in ONNX_NUMBER.items()}

HALVES = frozenset({torch.float16, torch.bfloat16})
SINGLES = HALVES | {torch.float32}
"""Floating types that every ONNX runtime computes, if need be in float32."""
REALS = SINGLES | {torch.float64}
WHOLES = frozenset({torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64})
NUMBERS = REALS | WHOLES
EVERY = NUMBERS | {torch.bool}
COUNTS = frozenset({torch.int32, torch.int64})


def wider(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    """Types in which a kernel may compute for a narrower one, in order of preference.

    Casting back wraps integers and turns any non-zero value into ``True``, which is what torch's own arithmetic does.
    """
    if dtype in HALVES:
        return (torch.float32,)
    if dtype is torch.bool:
        return (torch.uint8, torch.int32, torch.float32)
    if dtype in WHOLES:
        return (torch.int32, torch.int64) if dtype is not torch.int64 else ()
    return ()


@lru_cache(maxsize=4096)
def promoted(*operands: tuple[torch.dtype, bool] | type) -> torch.dtype:
    """The dtype torch computes in; operands are (dtype, whether it has dimensions) or the type of a Python number."""
    dimensioned = [item for item in operands if isinstance(item, tuple) and item[1]]
    scalars = [item for item in operands if isinstance(item, tuple) and not item[1]]
    numbers = [item for item in operands if isinstance(item, type)]
    samples = [torch.empty(1 if has else (), dtype=dtype) for dtype, has in (*dimensioned, *scalars)]
    result: torch.Tensor | None = None
    for sample in samples:
        result = (
            sample if result is None else torch.empty(_shape(result, sample), dtype=torch.result_type(result, sample))
        )
    for number in numbers:
        assert result is not None, "promotion needs a tensor operand"
        result = torch.empty(result.shape, dtype=torch.result_type(result, number(1)))
    assert result is not None, "promotion needs an operand"
    return result.dtype


def _shape(left: torch.Tensor, right: torch.Tensor) -> tuple[int, ...]:
    return (1,) if left.dim() or right.dim() else ()
