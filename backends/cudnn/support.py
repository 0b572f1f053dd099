"""Support: which ops the kernels take, and why not the others.

Place: ``Backend.judge``, and the checks of patterns. Input: ``OpView``. Output: verdicts.
"""

from __future__ import annotations

import torch

from mixbackend.backends.common.gpu_library import HALVES, may_be_empty, moves, not_on_gpu, not_one_type
from mixbackend.contracts import OpView, Supported, Unsupported, Verdict, refuse_special

ATTENTION = (
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_cudnn_attention.default",
)
CONVOLUTION = "aten.convolution.default"


def judge(view: OpView) -> Verdict:
    """Whether a kernel runs this op with torch's results."""
    special = refuse_special(view) or not_on_gpu(view)
    if special is not None:
        return special
    # Parts of a result stay with the op that made it; its verdict is theirs.
    if view.op == "getitem" or moves(view):
        return Supported()
    if view.op == CONVOLUTION:
        return _refuse_convolution(view) or Supported()
    if view.op in ATTENTION:
        return _refuse_attention(view) or Supported()
    return Unsupported("unknown-op", f"no kernel for {view.op}")


def refuse_fusion(view: OpView) -> Unsupported | None:
    """Why nothing can be fused with a convolution that is supported alone."""
    if torch.backends.cudnn.deterministic:
        return Unsupported("deterministic", "torch does not hand cudnn.deterministic on to fused kernels")
    image, weight = view.tensor("input"), view.tensor("weight")
    assert image is not None and weight is not None
    if view.argument("transposed") is not False or view.argument("groups") != 1:
        return Unsupported("argument", "only plain convolutions of one group have a fused kernel")
    if image.rank != 4:
        return Unsupported("rank", f"{image}: only images of two dimensions have a fused kernel")
    if image.dtype in HALVES and any(isinstance(size, int) and size % 2 for size in weight.shape[:2]):
        return Unsupported("layout", f"{weight}: fused kernels want even numbers of channels")
    return None


def _refuse_convolution(view: OpView) -> Unsupported | None:
    image, weight = view.tensor("input"), view.tensor("weight")
    if image is None or weight is None or image.rank != weight.rank or not 4 <= image.rank <= 5:
        return Unsupported("rank", f"input {image}, weight {weight}")
    padding = view.argument("padding")
    if not isinstance(padding, tuple) or any(not isinstance(size, int) or size < 0 for size in padding):
        return Unsupported("argument", f"padding={padding!r}")
    sizes = (*image.shape, *weight.shape, *view.output_tensors[0].shape)
    return not_one_type(view) or may_be_empty(sizes, "the image or weight")


def _refuse_attention(view: OpView) -> Unsupported | None:
    if view.argument("dropout_p") not in (0, 0.0):
        return Unsupported("random", f"dropout_p={view.argument('dropout_p')!r}")
    if view.phase != "inference":
        return Unsupported("phase", "the backward needs what its own forward kernel leaves")
    query = view.tensor("query")
    return None if query is None else may_be_empty(query.shape, "the query")
