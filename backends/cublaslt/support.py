"""Support: which products the kernels take, and why not others.

Place: ``Backend.judge``, and the checks of patterns. Input: ``OpView``. Output: verdicts.
"""

from __future__ import annotations

from mixbackend.backends.common.gpu_library import may_be_empty, moves, not_on_gpu, not_one_type
from mixbackend.contracts import OpView, Supported, Unsupported, Verdict, refuse_special

_FACTORS = {
    "aten.mm.default": ("self", "mat2"),
    "aten.bmm.default": ("self", "mat2"),
    "aten.addmm.default": ("mat1", "mat2"),
}


def judge(view: OpView) -> Verdict:
    """Whether a kernel runs this op with torch's results."""
    special = refuse_special(view) or not_on_gpu(view)
    if special is not None:
        return special
    if view.op == "getitem" or moves(view):
        return Supported()
    if view.op not in _FACTORS:
        return Unsupported("unknown-op", f"no kernel for {view.op}")
    return _refuse_product(view) or Supported()


def refuse_epilogue(view: OpView) -> Unsupported | None:
    """Why no activation can be fused with a product that is supported alone."""
    bias = view.tensor("self")
    columns = view.output_tensors[0].shape[1]
    if bias is None or bias.shape != (columns,):
        return Unsupported("layout", f"the bias {bias} is no row of {columns}")
    if not bias.contiguous():
        return Unsupported("layout", f"the bias {bias} has gaps")
    if view.argument("beta") not in (1, 1.0) or view.argument("alpha") not in (1, 1.0):
        return Unsupported("argument", f"beta={view.argument('beta')!r}, alpha={view.argument('alpha')!r}, needed 1")
    return None


def _refuse_product(view: OpView) -> Unsupported | None:
    sizes = [size for name in _FACTORS[view.op] if (meta := view.tensor(name)) is not None for size in meta.shape]
    return not_one_type(view) or may_be_empty(sizes, "a factor")
