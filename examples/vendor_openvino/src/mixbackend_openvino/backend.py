"""OpenVINO on the CPU: the backend itself. Knows mixbackend only through ``mixbackend.contracts``."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from importlib import metadata, util
from typing import Any, ClassVar

import numpy as np
import torch

from mixbackend.contracts import (
    Availability,
    Backend,
    BackendRates,
    BoundRun,
    CompiledRegion,
    Condition,
    DeviceModel,
    InputRole,
    NodeRef,
    OpClass,
    OpRate,
    OpTag,
    OpView,
    Region,
    RegionSketch,
    Supported,
    TensorMeta,
    Traits,
    Unsupported,
    Verdict,
    is_symbolic,
    known,
    thread_policy,
)
from mixbackend_openvino.calling import FLOATS, TYPES, Runner, shared

_PACKED = frozenset({"matmul", "convolution"})
_FUSED_AFTER: tuple[OpClass, ...] = ("pointwise", "view", "normalization")
_SHARES = {"matmul": 0.9, "convolution": 0.9, "attention": 0.8, "pointwise": 0.3, "normalization": 0.3, "softmax": 0.3}
_ARITHMETIC = {operator.add: "add", operator.sub: "subtract", operator.mul: "multiply", operator.floordiv: "divide"}


class OpenVinoBackend(Backend):
    """OpenVINO's CPU plug-in. Weights are inputs, read at every call, or constants of the compiled code."""

    name: ClassVar[str] = "openvino"
    contract_version: ClassVar[str] = "1.0"

    def availability(self) -> Availability:
        if util.find_spec("openvino") is None:
            return Availability(False, "openvino is not installed; pip install openvino")
        return Availability(True, version=metadata.version("openvino"))

    def fingerprint(self) -> str:
        return f"openvino={metadata.version('openvino')} threads={thread_policy().threads} table=4"

    def traits(self) -> Traits:
        heavy: tuple[OpClass, ...] = ("matmul", "convolution", "attention", "pointwise", "normalization")
        fused = frozenset((first, second) for first in heavy for second in _FUSED_AFTER)
        cpu = frozenset({"cpu"})
        # One request per region holds its buffers, so calls of one region are made one after another.
        return Traits(
            weights="baked", reentrant=False, fused=fused, compiles_behind=cpu, row_major=True, thread_pool="openvino"
        )

    def judge(self, view: OpView) -> Verdict:
        from mixbackend_openvino.table import TABLE

        # Several ops return empty tensors beside their result; these are not read.
        results = () if OpTag.MULTI_OUTPUT in view.node.tags else view.output_tensors
        for meta in (*view.input_tensors, *results):
            if any(known(Condition(size, "at_least", 1)) != "yes" for size in meta.shape):
                return Unsupported("argument", f"{meta} may be empty, and there are no kernels for empty tensors")
        return Supported() if view.op == "getitem" else TABLE.judge(view)

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        """Precision is a setting of a whole region, so what was widened for its precision is not mixed with others."""
        found = {meta.dtype for view in sketch.views for meta in view.input_tensors if meta.dtype in FLOATS}
        return Unsupported("dtype", "float32 and bfloat16 in one region") if len(found) > 1 else None

    def prior(self, device: DeviceModel) -> BackendRates:
        rates = tuple(
            (name, dtype, OpRate(1e-6, share * device.peak(dtype)))
            for name, share in _SHARES.items()
            for dtype in ("float32", "bfloat16")
        )
        return BackendRates(self.name, entry_s=15e-6, crossing_s=2e-6, rates=rates)  # type: ignore[arg-type]

    def compile(self, region: Region) -> CompiledRegion:
        if any(item.role is InputRole.CONSTANT for item in region.inputs):
            # What takes time is compiling with the values inside; without them there is nothing worth storing.
            return CompiledRegion(Late(region), bind=functools.partial(bind, region), strides="contiguous")
        compiled = compile_model(region)
        return CompiledRegion(Runner(compiled, region), artifact=_exported(compiled), strides="contiguous")

    def load(self, region: Region, artifact: bytes) -> CompiledRegion:
        compiled = _core().import_model(artifact, "CPU", _settings(region))
        return CompiledRegion(Runner(compiled, region), artifact=artifact, strides="contiguous")


def bind(region: Region, constants: Sequence[torch.Tensor | None]) -> BoundRun:
    """A region compiled with its constants inside: folded, fused and packed by OpenVINO."""
    # Weights of products and convolutions are packed; all else stays where torch has it.
    packed = {name for view in region.views if view.op_class in _PACKED for name in view.node.references()}
    pairs = zip(region.inputs, constants, strict=True)
    held = sum(value.nbytes for item, value in pairs if value is not None and item.name in packed)
    return BoundRun(Runner(compile_model(region, constants), region, constants), held)


def compile_model(region: Region, constants: Sequence[torch.Tensor | None] = ()) -> Any:
    """A region on the CPU, with our settings."""
    return _core().compile_model(build_model(region, constants), "CPU", _settings(region))


def build_model(region: Region, constants: Sequence[torch.Tensor | None] = ()) -> Any:
    """A region as an OpenVINO model: one parameter per input without a given value, one result per output.

    Between them all floating-point values are written as float32; ``_settings`` says in what they are computed.
    """
    import openvino

    from mixbackend_openvino.table import ROWS, Call

    values: dict[str, Any] = {}
    parameters: list[Any] = []
    given = constants or [None] * len(region.inputs)
    for item, constant in zip(region.inputs, given, strict=True):
        if constant is not None:
            values[item.name] = _constant(constant)
            continue
        parameters.append(_parameter(item.meta))
        values[item.name] = _widened(parameters[-1])
    views = {view.node.name: view for view in region.views}
    for node in (node for node in region.graph_module.graph.nodes if node.op == "call_function"):
        view = views.get(node.name)
        if view is None:
            values[node.name] = _number(node, values)
        elif view.op == "getitem":
            values[node.name] = values[node.args[0].name][node.args[1]]
        else:
            arguments = {name: _value(argument, values) for name, argument in view.node.arguments}
            values[node.name] = ROWS[view.op][0](Call(view, arguments))
    results = [_result(values[output.name], output.meta) for output in region.outputs]
    return openvino.Model(results, parameters, "region")


def _constant(tensor: torch.Tensor) -> Any:
    """A constant on torch's own memory; a transposed matrix as it lies there, turned in the graph."""
    from openvino import op, opset15

    if tensor.dim() == 2 and not tensor.is_contiguous() and tensor.t().is_contiguous():
        stored = _widened(op.Constant(shared(tensor.t()), shared_memory=True))
        return opset15.transpose(stored, np.array([1, 0], dtype=np.int64))
    dense = tensor.contiguous()
    # A copy that was made here dies here.
    return _widened(op.Constant(shared(dense), shared_memory=dense is tensor))


def _parameter(meta: Any) -> Any:
    import openvino

    if not isinstance(meta, TensorMeta):
        return openvino.opset15.parameter([], np.int64)
    shape = [-1 if is_symbolic(size) else size for size in meta.shape]
    return openvino.opset15.parameter(shape, getattr(openvino.Type, TYPES[meta.dtype][0]))


def _widened(node: Any) -> Any:
    from openvino import Type, opset15

    return opset15.convert(node, Type.f32) if node.get_element_type() == Type.bf16 else node


def _result(value: Any, meta: TensorMeta) -> Any:
    from openvino import Type, opset15

    return opset15.result(opset15.convert(value, Type.bf16) if meta.dtype is torch.bfloat16 else value)


def _value(argument: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(argument, NodeRef):
        return values[argument.name]
    return [_value(item, values) for item in argument] if isinstance(argument, tuple) else argument


def _number(node: torch.fx.Node, values: Mapping[str, Any]) -> Any:
    """A number that the region computes for itself: a size of one of its values, or arithmetic on sizes."""
    from openvino import opset15 as ov

    operands = [values[item.name] if isinstance(item, torch.fx.Node) else np.int64(item) for item in node.args]
    if node.target is torch.ops.aten.sym_size.int:
        return ov.gather(ov.shape_of(operands[0]), operands[1], np.int64(0))
    return getattr(ov, _ARITHMETIC[node.target])(*operands)


class Late:
    """The code of a region without bound constants: compiled by its first call, with every input a parameter."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._run: Runner | None = None

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        # Calls come one after another (Traits.reentrant).
        if self._run is None:
            self._run = Runner(compile_model(self._region), self._region)
        return self._run(inputs)


def _exported(compiled: Any) -> bytes:
    stream = compiled.export_model()
    return stream if isinstance(stream, bytes) else stream.getvalue()


@functools.cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def _settings(region: Region) -> dict[str, Any]:
    """One stream on as many threads as torch uses, unpinned so that torch's threads keep their cores; float32 stays."""
    threads = thread_policy().threads
    half = any(meta.dtype is torch.bfloat16 for view in region.views for meta in view.input_tensors)
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,
    }
