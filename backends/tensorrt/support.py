"""Support: which ops engines run, and why not the others.

Place: ``Backend.judge``. Input: ``OpView``. Output: verdicts.
An op is taken if the shared table of the lowering takes it and TensorRT's parser takes every node that the lowering
would write for it: the nodes are written, without a region, and held against ``kernels``. So what a build would refuse
is refused here, with the node's name.
Non-goals: results that only some regions read (indices of a pooling, statistics of a normalisation) are not written for
a verdict; a region that reads them does not compile.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import onnx
import torch

from mixbackend.backends.common.attention_patterns import FACTORS, attention_patterns
from mixbackend.backends.common.gpu_library import may_be_empty
from mixbackend.backends.common.onnx import TABLE, LoweringError
from mixbackend.backends.common.onnx.builder import GraphBuilder, Value
from mixbackend.backends.common.onnx.call import Call
from mixbackend.backends.common.onnx.dtypes import TORCH_DTYPE
from mixbackend.backends.tensorrt.kernels import target
from mixbackend.backends.tensorrt.sizes import writable
from mixbackend.backends.tensorrt.versions import Release
from mixbackend.contracts import (
    InputRole,
    Match,
    OpView,
    Pattern,
    RegionSketch,
    Supported,
    SupportTable,
    SymbolicSize,
    TensorMeta,
    Unsupported,
    Verdict,
    refuse_special,
)

HIGHEST_RANK = 7
CONVOLUTION = "aten.convolution.default"
_NORMALIZATIONS = frozenset(
    {"aten._native_batch_norm_legit_no_training.default", "aten.native_batch_norm.default"},
)
_MAIN_RESULT_ALONE = frozenset({"attention", "normalization", "pooling"})
_LOOKED_UP = frozenset({"gather", "view"})


class Support:
    """Verdicts for one release.

    Args:
        release: of TensorRT.
        devices: types of the devices from which tensors are taken.
    """

    def __init__(self, release: Release, devices: frozenset[str]) -> None:
        self._release = release
        self._devices = devices
        self._types = release.types
        self._table = SupportTable({name: entry.rule for name, entry in TABLE.items()}, devices=devices)

    def judge(self, view: OpView) -> Verdict:
        """Whether an engine gives torch's results for this op."""
        refusal = refuse_special(view) or self._refuse_values(view)
        if refusal is not None:
            return refusal
        # Parts of a result stay with the op that made it; its verdict is theirs.
        if view.op == "getitem":
            return Supported()
        verdict = self._table.judge(view)
        if isinstance(verdict, Unsupported):
            return verdict
        return _unknown_weights(view) or self._unwritten(view) or Supported()

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """Attention that is written out, of ops each of which is taken."""
        return attention_patterns(self.judge, _scaled_late)

    def _refuse_values(self, view: OpView) -> Unsupported | None:
        if view.phase != "inference":
            return Unsupported("phase", f"engines serve inference, this is a {view.phase}")
        metas = (*view.input_tensors, *_main_results(view))
        for meta in metas:
            if meta.device.type not in self._devices or (meta.device.index or 0) != 0:
                return Unsupported("device", f"{meta} is not on the first of {', '.join(sorted(self._devices))}")
            if meta.rank > HIGHEST_RANK:
                return Unsupported("rank", f"rank {meta.rank}, needed at most {HIGHEST_RANK}")
        refusal = self._refuse_types(view)
        if refusal is not None or view.op == "getitem":
            return refusal
        return _refuse_sizes(view)

    def _refuse_types(self, view: OpView) -> Unsupported | None:
        narrow = torch.int64 not in self._types
        reads_places = view.op_class in _LOOKED_UP
        for meta in view.input_tensors:
            if meta.dtype in self._types or (meta.dtype is torch.int64 and reads_places):
                continue
            return self._no_type(view, meta, narrow)
        results = (meta for meta in _main_results(view) if meta.dtype not in self._types)
        return next((self._no_type(view, meta, narrow) for meta in results), None)

    def _no_type(self, view: OpView, meta: TensorMeta, narrow: bool) -> Unsupported:
        why = "it computes int64 as int32" if narrow and meta.dtype is torch.int64 else "it has no such tensors"
        return Unsupported("dtype", f"{meta.dtype} in {view.op}: TensorRT {self._release}: {why}")

    def _unwritten(self, view: OpView) -> Unsupported | None:
        """The first node of an op's ONNX form that TensorRT's parser would refuse."""
        build = GraphBuilder(target(self._release))
        values = {item.name: _entering(build, place, item.meta) for place, item in enumerate(view.inputs)}
        count = len(view.outputs)
        used = frozenset({0} if view.op_class in _MAIN_RESULT_ALONE else range(count))
        try:
            TABLE[view.op].emit(Call(view, build, values, used))
        except LoweringError as error:
            return Unsupported("dtype" if "no kernel for" in str(error) else "unknown-op", f"{view.op}: {error.what}")
        return self._refuse_nodes(view, build.model("judged").graph)

    def _refuse_nodes(self, view: OpView, graph: onnx.GraphProto) -> Unsupported | None:
        kernels: Mapping[str, frozenset[torch.dtype]] = target(self._release).kernels
        for node in graph.node:
            if node.op_type not in kernels:
                return Unsupported("unknown-op", f"{view.op} is written with {node.op_type}, which TensorRT lacks")
            if node.op_type == "MaxPool" and len(node.output) > 1:
                return Unsupported("argument", f"{view.op}: TensorRT's pooling gives no indices")
        casts = (TORCH_DTYPE[item.i] for node in graph.node for item in node.attribute if item.name == "to")
        literals = (TORCH_DTYPE[tensor.data_type] for tensor in graph.initializer)
        allowed = self._types | {torch.int64}
        wrong = next((dtype for dtype in (*casts, *literals) if dtype not in allowed), None)
        return None if wrong is None else Unsupported("dtype", f"{view.op} computes in {wrong} on the way")


def unshown_size(sketch: RegionSketch) -> Unsupported | None:
    """A symbolic size of a region that engines cannot take from a tensor that enters."""
    sizes = [size for meta in sketch.inputs for size in meta.shape if isinstance(size, SymbolicSize)]
    shown = {size.expression for size in sizes}
    numbers = [item.meta for view in sketch.views for item in view.inputs if isinstance(item.meta, SymbolicSize)]
    for number in numbers:
        if number.expression in shown:
            continue
        if not number.expression.free_symbols <= shown or not writable(number.expression):
            return Unsupported("dynamic-shape", f"no tensor that enters shows the size {number}")
    for size in sizes:
        if not size.expression.free_symbols <= shown:
            return Unsupported("dynamic-shape", f"no tensor that enters shows what {size} is made of")
    return None


def _main_results(view: OpView) -> tuple[TensorMeta, ...]:
    """Results that are written; the others of these ops are statistics."""
    found = view.output_tensors
    return found[:1] if view.op_class in _MAIN_RESULT_ALONE else found


def _refuse_sizes(view: OpView) -> Unsupported | None:
    for meta in (*view.input_tensors, *_main_results(view)):
        for size in meta.shape:
            if isinstance(size, SymbolicSize) and size.hint is None:
                return Unsupported("data-dependent", f"{meta}: size {size} depends on values")
        static = tuple(size for size in meta.shape if isinstance(size, int))
        refusal = may_be_empty(static, str(meta))
        if refusal is not None:
            return refusal
    return None


def _scaled_late(match: Match) -> Unsupported | None:
    """Products of queries and keys as they are may leave the range of float16, which their sizes do not show."""
    for view in match.through("scores"):
        if view.op in FACTORS and view.output_tensors[0].dtype is torch.float32:
            return Unsupported("argument", f"{view.op} makes scores small in float32, after their product")
    return None


def _unknown_weights(view: OpView) -> Unsupported | None:
    """Kernels of convolutions are laid out when the engine is built; as inputs they would be turned at each call."""
    names: tuple[str, ...] = ()
    if view.op == CONVOLUTION:
        names = ("weight",)
    elif view.op in _NORMALIZATIONS:
        names = ("weight", "bias", "running_mean", "running_var")
    references = {getattr(view.argument(name), "name", None) for name in names} - {None}
    for item in view.inputs:
        if item.name in references and item.role is not InputRole.CONSTANT:
            return Unsupported("argument", f"{item.name} is no constant: engines want known weights (weights: auto)")
    return None


def _entering(build: GraphBuilder, place: int, meta: object) -> Value:
    if isinstance(meta, TensorMeta):
        return build.input(f"in{place}", meta.dtype, meta.shape)
    return build.input(f"in{place}", torch.int64 if not isinstance(meta, float) else torch.float64, ())
