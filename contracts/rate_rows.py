"""Rows of the rate tables: an op's class, and what else decides how fast its kernels run.

Place: read by the cost model and by probes; backends name rows in their priors.
A row is an op class, followed by qualifiers in a fixed order: ``convolution/grouped/channels_last/constant``.
Fallback: a backend states as many rows as it likes; a row that it does not state is the one without its last qualifier.
Invariants: pure; symbolic sizes count with their hints; no guard is added. An op's class is not changed by qualifiers,
so that fusion declarations hold for all rows of a class.
"""

from __future__ import annotations

from mixbackend.contracts.opclass import OP_CLASSES
from mixbackend.contracts.ops import InputRole, NodeRef, OpView
from mixbackend.contracts.sizes import hint_of
from mixbackend.contracts.tensors import TensorMeta

BATCHED = "batched"
"""A product of many small matrices, as of the heads of attention: kernels for large ones do not help."""
UNALIGNED = "unaligned"
"""On an accelerator, a product of 16-bit matrices with rows that do not all begin at multiples of 16 bytes, as of a
vocabulary of odd size: libraries' quick kernels refuse them, so that padding them is several times as fast."""
DEEP = "deep"
"""On an accelerator, a product with long sums and few results, as of the gradient of a weight: there is work for all
units only if the sums are split."""
TURNED = "turned"
"""On a processor, a product with a left matrix that lies column by column, as of the gradient of a weight: kernels that
go along rows copy it first."""
GROUPED = "grouped"
"""A convolution with few channels per group (a depthwise one): each output is a short sum, and the kernels for large
products do not help."""
CHANNELS_LAST = "channels_last"
"""A convolution of an image that is laid out with the channels innermost."""
POINT = "point"
"""On an accelerator, such a convolution with a kernel of one point: a product of matrices, with kernels of its own."""
GRADIENT = "gradient"
"""On a processor, the gradients of a convolution: kernels of their own, with sums over all positions of an image."""
ONE_ROW = "one_row"
"""A product of one row, or attention of one row of queries, as of a step of generation: it takes as long as reading its
weight, or keys and values, does for kernels that are made for that, and several times as long for others."""
CONSTANT = "constant"
"""A product or convolution with a weight that is known when its code is bound: packed once, not at each call."""
QUALIFIERS = (BATCHED, UNALIGNED, DEEP, TURNED, GROUPED, CHANNELS_LAST, POINT, GRADIENT, ONE_ROW, CONSTANT)
"""In the order in which a row names them."""

SMALL_GROUP = 8
"""Up to this many input channels per group count as few."""

DEEP_FACTOR = 2.5
"""Sums of at least this many times the geometric mean of the result's sides count as long."""

_RIGHT_OPERAND = {
    "mm": "mat2",
    "bmm": "mat2",
    "matmul": "other",
    "mv": "vec",
    "linear": "weight",
    "addmm": "mat2",
    "_addmm_activation": "mat2",
    "addmv": "vec",
    "baddbmm": "batch2",
    "addbmm": "batch2",
    "_scaled_mm": "mat2",
    "_weight_int4pack_mm_for_cpu": "mat2",
}

_LEFT_OPERAND = {"mm": "self", "matmul": "self", "linear": "input", "addmm": "mat1", "_addmm_activation": "mat1"}

_BATCHED = frozenset({"bmm", "baddbmm"})


def rate_row(view: OpView) -> str:
    """The row of the rate tables that an op belongs to."""
    if view.op_class == "matmul":
        known = _is_constant(view, _RIGHT_OPERAND.get(base_name(view), ""))
        batched = base_name(view) in _BATCHED
        single = _has_one_row(view)
        plain = batched or single
        shapes = {} if plain else {UNALIGNED: _is_unaligned(view), DEEP: _is_deep(view), TURNED: _is_turned(view)}
        return _joined("matmul", {BATCHED: batched, **shapes, ONE_ROW: single, CONSTANT: known})
    if view.op_class == "convolution":
        holds = {
            GROUPED: _in_small_groups(view),
            CHANNELS_LAST: _has_channels_last_image(view),
            POINT: _is_point(view),
            GRADIENT: base_name(view) == "convolution_backward" and _is_on_processor(view),
            CONSTANT: _is_constant(view, "weight"),
        }
        return _joined("convolution", holds)
    return _joined("attention", {ONE_ROW: _has_one_query(view)}) if view.op_class == "attention" else view.op_class


def wider_rows(row: str) -> tuple[str, ...]:
    """A row and those it falls back to, nearest first."""
    parts = row.split("/")
    return tuple("/".join(parts[:count]) for count in range(len(parts), 0, -1))


def is_rate_row(text: str) -> bool:
    """Whether a text names a row: an op class with known qualifiers, each at most once and in order."""
    op_class, *qualifiers = text.split("/")
    places = [QUALIFIERS.index(item) if item in QUALIFIERS else -1 for item in qualifiers]
    return op_class in OP_CLASSES and -1 not in places and places == sorted(set(places))


def is_channels_last(meta: TensorMeta) -> bool:
    """Whether an image (batch, channels, two or three sizes) has its channels innermost and is not row-major, too.

    Images with one channel or one pixel have both layouts: they count as row-major.
    """
    if meta.rank not in (4, 5) or meta.elements() == 0 or meta.contiguous():
        return False
    expected = 1
    for dimension in (1, *reversed(range(2, meta.rank)), 0):
        extent = hint_of(meta.shape[dimension])
        if extent != 1 and hint_of(meta.stride[dimension]) != expected:
            return False
        expected *= extent
    return True


def relaid_weight(view: OpView) -> TensorMeta | None:
    """The row-major weight that a channels-last convolution must copy into its own layout at each call, if it does.

    Kernels of one point have both layouts. Code that was bound to the weight keeps the copy.
    """
    weight = view.tensor("weight") if view.op_class == "convolution" and view.has_argument("weight") else None
    if weight is None or not _has_channels_last_image(view) or is_channels_last(weight):
        return None
    points = weight.shape[2:]
    single = hint_of(weight.shape[1]) == 1 or all(hint_of(size) == 1 for size in points)
    return None if single else weight


def _joined(op_class: str, holds: dict[str, bool]) -> str:
    return "/".join([op_class, *(qualifier for qualifier in QUALIFIERS if holds.get(qualifier, False))])


def base_name(view: OpView) -> str:
    """Name of an operator without its library and overload."""
    return view.op.split(".")[1] if "." in view.op else view.op


def _has_one_row(view: OpView) -> bool:
    """Whether a product has one row; that of vectors alone is not meant."""
    name = _LEFT_OPERAND.get(base_name(view), "")
    left = view.tensor(name) if view.has_argument(name) else None
    return left is not None and left.rank >= 2 and all(hint_of(size) == 1 for size in left.shape[:-1])


def _has_one_query(view: OpView) -> bool:
    """Whether attention has one row of queries in each head, as a step of generation has."""
    query = view.tensor("query") if view.has_argument("query") else None
    return query is not None and query.rank == 4 and hint_of(query.shape[2]) == 1


def _is_deep(view: OpView) -> bool:
    """Whether a product on an accelerator is a deep one; those of a processor's few cores are all alike."""
    name = _RIGHT_OPERAND.get(base_name(view), "")
    right = view.tensor(name) if view.has_argument(name) else None
    result = view.output_tensors[0] if view.output_tensors else None
    if right is None or result is None or right.rank != 2 or result.device.type == "cpu":
        return False
    terms = hint_of(right.shape[1] if base_name(view) == "linear" else right.shape[0])
    return terms * terms >= DEEP_FACTOR**2 * result.elements()


def _is_turned(view: OpView) -> bool:
    name = _LEFT_OPERAND.get(base_name(view), "")
    left = view.tensor(name) if view.has_argument(name) else None
    if left is None or left.rank != 2 or not _is_on_processor(view):
        return False
    return all(hint_of(size) > 1 for size in left.shape) and hint_of(left.stride[0]) == 1


def _is_on_processor(view: OpView) -> bool:
    return all(meta.device.type == "cpu" for meta in view.output_tensors)


def _is_unaligned(view: OpView) -> bool:
    """Whether a matrix of a product on an accelerator has rows that begin between multiples of 16 bytes."""
    matrices = (meta for meta in (*view.input_tensors, *view.output_tensors) if meta.rank >= 2 and meta.elements())
    return any(meta.device.type != "cpu" and _row_bytes(meta) % 16 for meta in matrices if meta.dtype.itemsize == 2)


def _row_bytes(meta: TensorMeta) -> int:
    """From one row to the next, or from one column to the next where these are in one piece; 0 if there is only one."""
    pairs = zip(meta.shape, meta.stride, strict=True)
    steps = [hint_of(stride) for size, stride in pairs if hint_of(size) > 1 and hint_of(stride) > 1]
    return min(steps, default=0) * meta.dtype.itemsize


def _in_small_groups(view: OpView) -> bool:
    groups = view.argument("groups") if view.has_argument("groups") else 1
    weight = view.tensor("weight") if view.has_argument("weight") else None
    if not isinstance(groups, int) or groups <= 1 or weight is None or weight.rank < 2:
        return False
    return hint_of(weight.shape[1]) <= SMALL_GROUP


def _is_point(view: OpView) -> bool:
    weight = view.tensor("weight") if view.has_argument("weight") else None
    if weight is None or weight.device.type == "cpu" or not _has_channels_last_image(view):
        return False
    groups = view.argument("groups") if view.has_argument("groups") else 1
    return groups == 1 and all(hint_of(size) == 1 for size in weight.shape[2:])


def _has_channels_last_image(view: OpView) -> bool:
    image = view.tensor("input") if view.has_argument("input") else None
    return image is not None and is_channels_last(image)


def _is_constant(view: OpView, name: str) -> bool:
    """Whether the value of an argument is known; views of constants are constants (``OpGraph.value``)."""
    argument = view.argument(name) if view.has_argument(name) else None
    if not isinstance(argument, NodeRef):
        return False
    return any(item.name == argument.name and item.role is InputRole.CONSTANT for item in view.inputs)
