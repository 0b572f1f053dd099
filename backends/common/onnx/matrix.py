"""Matrix products.

Place: a family of the lowering table. ``addmm`` becomes ``Gemm``, and so does a product with a transposed matrix: the
operator reads it as it is stored, so that it need not be turned.
"""

from __future__ import annotations

from mixbackend.backends.common.onnx.builder import Value
from mixbackend.backends.common.onnx.call import Call
from mixbackend.backends.common.onnx.dtypes import COUNTS, REALS, SINGLES
from mixbackend.backends.common.onnx.table import lowers
from mixbackend.contracts import OpRule, OpView, Unsupported

_PRODUCT = OpRule(dtypes=REALS | COUNTS)


@lowers("mm bmm dot mv", _PRODUCT)
def _mm(call: Call) -> Value:
    names = [name for name, _ in call.view.node.arguments]
    left, right = call.tensor(names[0]), call.tensor(names[1])
    stored = call.build.before(right, "Transpose", perm=[1, 0])
    if stored is None or left.dtype not in SINGLES or left.rank != 2:
        return _product(call, left, right)
    return call.op("Gemm", left, stored, transB=1)


def _product(call: Call, left: Value, right: Value) -> Value:
    """A product of matrices: runtimes fuse a transposition into it, and are wrong for vectors then."""
    lone = [axis for axis, operand in ((-2, left), (-1, right)) if operand.rank == 1]
    if left.rank == 1:
        left = call.op("Unsqueeze", left, call.build.integers([0]))
    if right.rank == 1:
        right = call.op("Unsqueeze", right, call.build.integers([1]))
    product = call.op("MatMul", left, right)
    return call.op("Squeeze", product, call.build.integers(lone)) if lone else product


def _literal_scales(view: OpView) -> Unsupported | None:
    for name in ("alpha", "beta"):
        if not isinstance(view.argument(name), (int, float)):
            return Unsupported("argument", f"{name} is known only at run time")
    return None


@lowers("addmm", OpRule(dtypes=REALS | COUNTS, arguments=(_literal_scales,)))
def _addmm(call: Call) -> Value:
    alpha, beta = float(call.argument("alpha")), float(call.argument("beta"))
    exact = call.out.dtype in SINGLES or (alpha == 1.0 and beta == 1.0 and call.out.dtype in REALS)
    if not exact:
        # Gemm's factors are float32, and it takes no integers.
        return _added(call, call.op("MatMul", call.tensor("mat1"), call.tensor("mat2")))
    addend = None if beta == 0.0 else call.tensor("self")
    right = call.tensor("mat2")
    stored = call.build.before(right, "Transpose", perm=[1, 0])
    return call.op(
        "Gemm",
        call.tensor("mat1"),
        stored or right,
        addend,
        alpha=alpha,
        beta=beta if addend else None,
        transB=1 if stored else None,
    )


@lowers("baddbmm", OpRule(dtypes=REALS | COUNTS, arguments=(_literal_scales,)))
def _baddbmm(call: Call) -> Value:
    return _added(call, call.op("MatMul", call.tensor("batch1"), call.tensor("batch2")))


@lowers("addmv", OpRule(dtypes=REALS | COUNTS, arguments=(_literal_scales,)))
def _addmv(call: Call) -> Value:
    return _added(call, _product(call, call.tensor("mat"), call.tensor("vec")))


def _added(call: Call, product: Value) -> Value:
    """``alpha * product + beta * self``; a ``beta`` of zero hides even NaN in ``self``."""
    alpha, beta = call.argument("alpha"), call.argument("beta")
    if alpha != 1:
        product = call.op("Mul", product, call.build.constant(alpha, product.dtype))
    if beta == 0:
        return product
    addend = call.tensor("self")
    if beta != 1:
        addend = call.op("Mul", addend, call.build.constant(beta, addend.dtype))
    return call.op("Add", product, addend)
