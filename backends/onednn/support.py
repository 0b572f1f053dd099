"""Support: which ops oneDNN's kernels take, and why not the others.

Place: ``Backend.judge``, and the checks of patterns. Input: ``OpView``. Output: verdicts.
Three groups: ops with kernels of oneDNN's own interface (products, convolutions); ops that torch itself runs best
(attention, the backward of convolutions), taken as they are; and what moves or renames data between them.
Invariants: what the kernels refuse at run time is refused here: no terms to sum, self-overlapping operands, types
without kernels, empty images.
"""

from __future__ import annotations

from collections.abc import Callable

from mixbackend.backends.onednn.kernels import element_types
from mixbackend.contracts import (
    Condition,
    OpTag,
    OpView,
    Size,
    Supported,
    SymbolicSize,
    TensorMeta,
    Unsupported,
    Verdict,
    hint_of,
    known,
    refuse_special,
)

LARGE_PRODUCT = 3e7
"""FLOP of one matrix of a batch from which one call per matrix is worth it."""

_ATTENTION = (
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
)
_COPIES = ("aten.clone.default",)

Refusal = Unsupported | None


def judge(view: OpView) -> Verdict:
    """Whether a kernel runs this op with torch's results."""
    special = refuse_special(view)
    if special is not None:
        return special
    # Parts of a result stay with the op that made it; its verdict is theirs.
    if view.op == "getitem":
        return Supported()
    test = _TESTS.get(view.op)
    refusal = _not_on_cpu(view)
    if refusal is None and test is not None:
        refusal = test(view) if view.op in _ATTENTION else _types(view) or test(view)
    elif refusal is None and not _moves(view):
        refusal = Unsupported("unknown-op", f"no kernel for {view.op}")
    return Supported() if refusal is None else refusal


def overlaps(meta: TensorMeta) -> bool:
    """Whether two elements share memory in a way that oneDNN cannot describe (a stride of 0 it can)."""
    steps = sorted(
        (hint_of(stride), hint_of(size))
        for size, stride in zip(meta.shape, meta.stride, strict=True)
        if hint_of(size) > 1 and hint_of(stride) != 0
    )
    reach = 0
    for stride, size in steps:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def bias_is_row(view: OpView) -> bool:
    """Whether an ``addmm`` adds one row to all rows, which the kernel does by itself."""
    bias = view.tensor("self")
    columns = view.output_tensors[0].shape[1]
    return bias is not None and (bias.shape == (columns,) or bias.shape == (1, columns))


def _moves(view: OpView) -> bool:
    if OpTag.STRIDE_SENSITIVE in view.node.tags:
        return False
    return view.op in _COPIES or OpTag.VIEW in view.node.tags


def _not_on_cpu(view: OpView) -> Refusal:
    for meta in (*view.input_tensors, *view.output_tensors):
        if meta.device.type != "cpu":
            return Unsupported("device", f"{meta} is not on cpu")
    return None


def _types(view: OpView) -> Refusal:
    floating = [meta for meta in view.input_tensors if meta.dtype.is_floating_point or meta.dtype.is_complex]
    integers = [meta for meta in view.input_tensors if meta not in floating]
    for meta in (*floating, *integers):
        if meta.dtype not in element_types():
            return Unsupported("dtype", f"oneDNN has no kernel for {meta.dtype} here")
        if meta.dtype is not floating[0].dtype:
            return Unsupported("dtype", f"{meta.dtype} meets {floating[0].dtype}")
    return None


def _at_least_one(size: Size, what: str) -> Refusal:
    if known(Condition(size, "at_least", 1)) == "yes":
        return None
    return Unsupported("dynamic-shape" if isinstance(size, SymbolicSize) else "layout", f"{what} may be empty")


def _operand(view: OpView, name: str) -> Refusal:
    meta = view.tensor(name)
    if meta is None:
        return Unsupported("argument", f"{name} is no tensor")
    return Unsupported("layout", f"{name} {meta} overlaps itself") if overlaps(meta) else None


def _mm(view: OpView) -> Refusal:
    return _product(view, "self", "mat2")


def _product(view: OpView, left: str, right: str) -> Refusal:
    refusal = _operand(view, left) or _operand(view, right)
    if refusal is not None:
        return refusal
    meta = view.tensor(left)
    assert meta is not None
    return _at_least_one(meta.shape[-1], "the sum")


def _addmm(view: OpView) -> Refusal:
    for name in ("beta", "alpha"):
        if view.argument(name) not in (1, 1.0):
            return Unsupported("argument", f"{name}={view.argument(name)!r}, needed 1")
    refusal = _product(view, "mat1", "mat2")
    bias, result = view.tensor("self"), view.output_tensors[0]
    if refusal is not None or bias is None or bias_is_row(view):
        return refusal
    if bias.shape != result.shape:
        return Unsupported("layout", f"the bias {bias} is neither a row nor a matrix of {result}")
    return _operand(view, "self")


def _bmm(view: OpView) -> Refusal:
    left, result = view.tensor("self"), view.output_tensors[0]
    assert left is not None
    terms, rows, columns = hint_of(left.shape[2]), hint_of(result.shape[1]), hint_of(result.shape[2])
    if 2.0 * terms * rows * columns < LARGE_PRODUCT:
        return Unsupported("declined", f"matrices of {rows}x{terms}x{columns} are quicker in one call")
    return _at_least_one(left.shape[0], "the batch") or _product(view, "self", "mat2")


def _convolution(view: OpView) -> Refusal:
    image, weight = view.tensor("input"), view.tensor("weight")
    if image is None or weight is None or image.rank != weight.rank or not 3 <= image.rank <= 5:
        return Unsupported("rank", f"input {image}, weight {weight}")
    padding = view.argument("padding")
    if not isinstance(padding, tuple) or any(_may_be_negative(size) for size in padding):
        return Unsupported("argument", f"padding={padding!r}")
    sizes = (*image.shape[1:], *weight.shape, *view.output_tensors[0].shape[1:])
    return next((refusal for size in sizes if (refusal := _at_least_one(size, "the image or weight"))), None)


def _may_be_negative(size: object) -> bool:
    return not isinstance(size, (int, SymbolicSize)) or known(Condition(size, "at_least", 0)) != "yes"


def _convolution_backward(view: OpView) -> Refusal:
    image, weight = view.tensor("input"), view.tensor("weight")
    if image is None or weight is None:
        return Unsupported("argument", "input or weight is no tensor")
    sizes = (*image.shape, *weight.shape)
    return next((refusal for size in sizes if (refusal := _at_least_one(size, "the image or weight"))), None)


def _attention(view: OpView) -> Refusal:
    if view.argument("dropout_p") not in (0, 0.0):
        return Unsupported("random", f"dropout_p={view.argument('dropout_p')!r}")
    return None


_TESTS: dict[str, Callable[[OpView], Refusal]] = {
    "aten.mm.default": _mm,
    "aten.addmm.default": _addmm,
    "aten.bmm.default": _bmm,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    **dict.fromkeys(_ATTENTION, _attention),
}
