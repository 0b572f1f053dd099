"""Patterns: attention written out as two products and a softmax, as one label for the planner.

Place: part of ``Backend.patterns`` where a GPU's kernels for attention take what matched, from any library; each
backend writes it in its own way. Torch itself writes attention out where its rules find no kernel, in float32 between
16-bit values: for a mask with an expanded last dimension, for instance.
Form: ``bmm(softmax(bmm(query, keys) * scale + mask), values)``, with and without the mask; numbers as factors of the
query, the keys or the scores; conversions, copies and reshapes in between. A transpose back to rows of heads and its
copy belong to it: kernels give that layout by themselves.
Invariants: inference alone, and only 16-bit values, so that nothing is computed less exactly than the inputs are; a
match is refused where a kernel would give something else: a row without any key is zeros in all of them, so it is
``_safe_softmax`` that may have a mask.
Price: that of torch's own operator of attention.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import torch

from mixbackend.backends.common.gpu_library import HALVES, may_be_empty
from mixbackend.contracts import Any as Anything
from mixbackend.contracts import (
    InputRole,
    InputView,
    Literal,
    Match,
    NodeRef,
    Op,
    OpNode,
    OpView,
    Pattern,
    Size,
    Supported,
    TensorMeta,
    Unsupported,
    Verdict,
    op_class_of,
)

PRODUCT = "aten.bmm.default"
SAFE = "aten._safe_softmax.default"
CONVERSION = "aten._to_copy.default"
FACTORS = ("aten.mul.Scalar", "aten.mul.Tensor", "aten.div.Scalar", "aten.div.Tensor")
TURNS = ("aten.transpose.int", "aten.permute.default")
EQUAL = "aten._scaled_dot_product_efficient_attention.default"
"""The operator with the price of a match."""

_RESHAPE, _EXPAND, _COPY = "aten.reshape.default", "aten.expand.default", "aten.clone.default"
_PASSED = (_RESHAPE, _EXPAND, _COPY, CONVERSION)
_SCALED = (*_PASSED, *FACTORS)
_WIDEST_HEAD = 256
_ALIGNED = 8
"""Elements of 16 bits in 16 bytes, which kernels load at once."""


def _nothing(match: Match) -> Unsupported | None:
    return None


def _result(masked: bool, turned: bool) -> Op:
    """Up to the second product. Keys are transposed behind their conversion, or before all of this."""
    keys: Op | Anything = Anything("key", _SCALED)
    if turned:
        keys = Op(TURNS, (keys,), "turned", behind=_SCALED)
    scores = Op((PRODUCT,), (Anything("query", _SCALED), keys), "scores", reshaped=True, behind=(CONVERSION, *FACTORS))
    if masked:
        operands = (scores, Anything("mask", (CONVERSION,)), Literal(1))
        scores = Op(("aten.add.Tensor",), operands, "masking", commutative=True, reshaped=True, behind=(CONVERSION,))
    softmaxes = (SAFE,) if masked else (SAFE, "aten._softmax.default")
    weights = Op(softmaxes, (scores,), "softmax", reshaped=True, behind=(CONVERSION, _EXPAND, _COPY))
    return Op((PRODUCT,), (weights, Anything("value", _PASSED)), "result", reshaped=True, behind=(CONVERSION,))


def attention_patterns(
    judge: Callable[[OpView], Verdict | None], refuse: Callable[[Match], Unsupported | None] = _nothing
) -> tuple[Pattern, ...]:
    """The patterns of a backend.

    Args:
        judge: asked about every op of what is attention: what it refuses alone it refuses here.
        refuse: what else speaks against a match.
    """

    def check(match: Match) -> Verdict:
        # Verdicts may write an op out: only what is attention is worth that.
        refusal = _refuse(match) or refuse(match)
        verdicts = () if refusal else map(judge, _views_of(match))
        return refusal or next((item for item in verdicts if isinstance(item, Unsupported)), Supported())

    return tuple(_forms(check))


def _views_of(match: Match) -> list[OpView]:
    return [view for _, view in match.parts] + [view for _, passed in match.passed for view in passed]


def _forms(check: Callable[[Match], Verdict]) -> Iterator[Pattern]:
    for masked, turned in itertools.product((False, True), (False, True)):
        result, ending = _result(masked, turned), "_turned" * turned + "_masked" * masked
        rows = Op((_COPY,), (Op(("aten.transpose.int",), (result,), "back"),), "rows")
        converted = Op((CONVERSION,), (result,), "converted")
        for name, root in (("attention_rows", rows), ("attention_converted", converted), ("attention", result)):
            yield Pattern(f"{name}{ending}", root, check, priced_as=equal_op)


def _refuse(match: Match) -> Unsupported | None:
    """Why kernels would not compute it as well as the written ops do."""
    views = _views_of(match)
    if any(view.phase != "inference" for view in views):
        return Unsupported("phase", "the backward needs values between the products")
    refusal = _refuse_types(match, views) or _refuse_softmax(match) or _refuse_scores(match)
    return refusal or _refuse_heads(match) or _refuse_factors(views) or _refuse_rows(match)


def bound(match: Match, name: str) -> TensorMeta:
    """Meta of the value that an ``Any`` bound."""
    keys = ("turned", "self") if "turned" in dict(match.parts) else ("scores", "mat2")
    readers = {"query": ("scores", "self"), "key": keys, "value": ("result", "mat2")}
    passed = match.through(name)
    if passed:
        return passed[-1].input_tensors[0]
    if name == "mask":
        view, bound_name = match.part("masking"), dict(match.bindings)["mask"]
        meta = next(item.meta for item in view.inputs if item.name == bound_name)
    else:
        part, argument = readers[name]
        meta = match.part(part).tensor(argument)
    assert isinstance(meta, TensorMeta)
    return meta


def heads(match: Match) -> tuple[tuple[Size, Size], Size, Size]:
    """(batch, heads), size of a head of the queries, size of a head of the values."""
    *leading, _, _ = match.part("softmax").output_tensors[0].shape
    batch, count = (leading[0], 1) if len(leading) == 1 else leading
    return (batch, count), _operand(match, "scores", "self").shape[2], _operand(match, "result", "mat2").shape[2]


def shapes(match: Match) -> dict[str, tuple[Size, ...]]:
    """Shapes that the kernels want of the operands."""
    both, size, width = heads(match)
    queries, keys = match.part("softmax").output_tensors[0].shape[-2:]
    return {"query": (*both, queries, size), "key": (*both, keys, size), "value": (*both, keys, width)}


def factor_of(view: OpView) -> float | None:
    """The number that an op multiplies with; ``None`` if it is no known one."""
    number = view.argument("other")
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number) or number <= 0:
        return None
    return float(number) if ".mul." in view.op else 1.0 / number


def equal_op(match: Match) -> OpView:
    """Torch's operator of attention on the same values: what the match takes as long as."""
    names, metas = dict(match.bindings), {}
    for name, shape in shapes(match).items():
        meta = bound(match, name)
        metas[name] = TensorMeta(shape, (1,) * len(shape), meta.dtype, meta.device)
    arguments = [(name, NodeRef(names[name])) for name in metas]
    inputs = {names[name]: InputView(names[name], meta, InputRole.ACTIVATION) for name, meta in metas.items()}
    if "mask" in names:
        arguments.append(("attn_bias", NodeRef(names["mask"])))
        inputs[names["mask"]] = InputView(names["mask"], bound(match, "mask"), InputRole.ACTIVATION)
    query, value = metas["query"], metas["value"]
    made = TensorMeta((*query.shape[:3], value.shape[3]), (1,) * 4, query.dtype, query.device)
    node = OpNode(match.root, EQUAL, tuple(arguments), (made,))
    return OpView(node, tuple(inputs.values()), "inference", op_class_of(EQUAL))


def _operand(match: Match, part: str, argument: str) -> TensorMeta:
    meta = match.part(part).tensor(argument)
    assert meta is not None
    return meta


def _root(match: Match) -> TensorMeta:
    parts = dict(match.parts)
    return next(parts[name] for name in ("rows", "converted", "result") if name in parts).output_tensors[0]


def _refuse_types(match: Match, views: list[OpView]) -> Unsupported | None:
    narrow = bound(match, "query").dtype
    if narrow not in HALVES:
        return Unsupported("dtype", f"attention of {narrow}: kernels for it may round factors to TF32")
    names = [name for name, _ in match.bindings]
    for meta in (*(bound(match, name) for name in names), _root(match)):
        if meta.dtype is not narrow:
            return Unsupported("dtype", f"{meta} meets {narrow}")
    for meta in (meta for view in views for meta in view.output_tensors):
        if meta.dtype not in (narrow, torch.float32):
            return Unsupported("dtype", f"{narrow} is converted to {meta.dtype} in between")
    return None


def _refuse_softmax(match: Match) -> Unsupported | None:
    view = match.part("softmax")
    rank = view.output_tensors[0].rank
    if rank not in (3, 4):
        return Unsupported("rank", f"a softmax of rank {rank}")
    if rank == 3 and "masking" in dict(match.parts):
        return Unsupported("rank", "a mask for batch and heads in one dimension")
    if view.argument("dim") not in (-1, rank - 1):
        return Unsupported("argument", f"a softmax over dimension {view.argument('dim')} of {rank}")
    return None


def _refuse_scores(match: Match) -> Unsupported | None:
    """Queries and keys must stay the last two dimensions; the mask must be added to scores of the softmax's shape."""
    scores, softmax = match.part("scores").output_tensors[0], match.part("softmax").output_tensors[0]
    between = [match.part("softmax"), *match.through("scores"), *match.through("softmax")]
    between += [match.part("masking"), *match.through("masking")] if "masking" in dict(match.parts) else []
    for view in between:
        made = view.output_tensors[0]
        if made.rank < 3 or made.shape[-2:] != scores.shape[-2:] or made.elements() != scores.elements():
            return Unsupported("layout", f"scores {scores} become {made}")
    if "masking" in dict(match.parts) and match.part("masking").output_tensors[0].shape != softmax.shape:
        return Unsupported("layout", f"a mask is added to {match.part('masking').output_tensors[0]}, then {softmax}")
    return may_be_empty(scores.shape, "the scores")


def _refuse_heads(match: Match) -> Unsupported | None:
    _, size, width = heads(match)
    for extent in (size, width):
        if not isinstance(extent, int) or extent % _ALIGNED or not 0 < extent <= _WIDEST_HEAD:
            return Unsupported("layout", f"heads of {extent}: kernels want multiples of {_ALIGNED} to {_WIDEST_HEAD}")
    columns = keys_as_columns(match)
    queries, keys = match.part("softmax").output_tensors[0].shape[-2:]
    if columns.shape[-2:] != (size, keys):
        return Unsupported("layout", f"keys {columns} of heads of {size}, {queries} queries and {keys} keys")
    wanted = shapes(match)
    turn = dict(match.parts).get("turned")
    pairs = [(bound(match, name), wanted[name]) for name in ("query", "value")]
    pairs += [(columns, (*wanted["key"][:2], size, keys))]
    pairs += [(bound(match, "key"), turn.input_tensors[0].shape)] if turn is not None else []
    for meta, shape in pairs:
        if meta.shape != shape and not all(isinstance(extent, int) for extent in (*meta.shape, *shape)):
            return Unsupported("dynamic-shape", f"{meta} is not seen to be {shape}")
    return None


def keys_as_columns(match: Match) -> TensorMeta:
    """The transposed keys, before they are reshaped for the product."""
    if "turned" in dict(match.parts):
        return match.part("turned").output_tensors[0]
    return bound(match, "key")


def _refuse_factors(views: list[OpView]) -> Unsupported | None:
    for view in views:
        if view.op in FACTORS and factor_of(view) is None:
            return Unsupported("argument", f"scores times {view.argument('other')}, which is no known positive number")
    return None


def _refuse_rows(match: Match) -> Unsupported | None:
    """The result has batch and heads apart or as one; a transpose back swaps queries and heads, its copy is dense."""
    parts, root = dict(match.parts), _root(match)
    both, _, width = heads(match)
    apart = (*both, match.part("softmax").output_tensors[0].shape[-2], width)
    if "rows" not in parts:
        right = root.shape == apart or (root.rank == 3 and root.shape[1:] == apart[2:])
        return None if right else Unsupported("layout", f"the result becomes {root}")
    source = parts["back"].tensor("self")
    dimensions = {parts["back"].argument("dim0"), parts["back"].argument("dim1")}
    if source is None or source.shape != apart or dimensions not in ({1, 2}, {-3, -2}):
        return Unsupported("layout", f"{source} is transposed to {parts['back'].output_tensors[0]}")
    return None if root.contiguous() else Unsupported("layout", f"{root} is not row-major")
