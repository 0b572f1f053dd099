"""Graph builder: ONNX nodes with element types that are always right.

Place: under every emitter of the lowering.
Input: operator names, values and attributes. Output: an ``onnx.ModelProto``.
Invariants: every value's element type is known, derived from ONNX's own operator schemas; where the target has no
kernel for a type, the builder computes in a wider one and casts back; equal constants and casts are written once.
Non-goals: shape inference and optimisation; runtimes do both.
ONNX itself is loaded by the first graph that is built: judging an op reads only the tables, and happens at every start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from mixbackend.backends.common.onnx.dtypes import ONNX_NUMBER, wider
from mixbackend.backends.common.onnx.errors import LoweringError
from mixbackend.contracts import Size, TensorMeta, is_symbolic

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor in the ONNX graph.

    Attributes:
        name: in the graph.
        dtype: element type.
        shape: sizes as torch traced them, ``None`` for values that exist only in the ONNX graph.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[Size, ...] | None = None

    @property
    def rank(self) -> int:
        """Number of dimensions of a value that torch knows."""
        return len(self.sizes)

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Sizes of a value that torch knows."""
        assert self.shape is not None, f"{self.name} exists only in the ONNX graph"
        return self.shape

    def shaped(self, shape: tuple[Size, ...]) -> Value:
        """The same value, with the sizes that torch knows it by."""
        return Value(self.name, self.dtype, shape)


@dataclass(frozen=True)
class Target:
    """What the lowering writes for.

    Attributes:
        opset: version of the ONNX operator set.
        ir_version: of the model file.
        kernels: element types for which an ONNX operator has a kernel; operators not listed take every type. An
            operator that reduces has a row of its own (``ScatterElements:add``).
        attention: whether scaled dot-product attention is written as one ``Attention`` operator, in which rows that see
            nothing must be zero; else as products and a softmax.
        half_formulas: whether formulas of halves (``gelu``, the products of attention) are written in their own type,
            for kernels that compute in float32 inside; else they are cast.
    """

    opset: int
    ir_version: int
    kernels: Mapping[str, frozenset[torch.dtype]]
    attention: bool = False
    half_formulas: bool = False


_REDUCTIONS = frozenset(f"Reduce{kind}" for kind in ("Max", "Min", "Mean", "Prod", "L1", "L2"))
_AXES_ARE_INPUTS_SINCE = 18
"""The operator set in which the axes of these reductions, and of ``Pad``, became inputs."""


@dataclass(frozen=True, slots=True)
class _Signature:
    inputs: tuple[str, ...]
    variadic: bool
    outputs: tuple[str, ...]

    def input_type(self, index: int) -> str:
        return self.inputs[min(index, len(self.inputs) - 1)] if self.variadic else self.inputs[index]

    def output_type(self, index: int) -> str:
        return self.outputs[min(index, len(self.outputs) - 1)]


@lru_cache(maxsize=512)
def _signature(operator: str, opset: int) -> _Signature:
    import onnx

    try:
        schema = onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError as error:
        raise LoweringError(f"operator set {opset} has no {operator}") from error
    # A type variable that allows one type only (Less gives bool) is that type.
    single = {
        item.type_param_str: item.allowed_type_strs[0]
        for item in schema.type_constraints
        if len(item.allowed_type_strs) == 1
    }
    last = schema.inputs[-1] if schema.inputs else None
    return _Signature(
        tuple(single.get(item.type_str, item.type_str) for item in schema.inputs),
        last is not None and last.option == onnx.defs.OpSchema.FormalParameterOption.Variadic,
        tuple(single.get(item.type_str, item.type_str) for item in schema.outputs),
    )


class GraphBuilder:
    """Collects the nodes of one ONNX graph."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[tuple[Any, ...], Value] = {}
        self._tensors: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._pure: dict[tuple[Any, ...], Value] = {}
        self._made: dict[str, tuple[str, Sequence[Value | None], Mapping[str, Any]]] = {}
        self._literals: dict[str, list[int]] = {}
        self._counter = 0

    # --- values ------------------------------------------------------------------------------------------------------

    def input(self, name: str, dtype: torch.dtype, shape: tuple[Size, ...]) -> Value:
        """A graph input."""
        self._inputs.append(_value_info(name, dtype, shape))
        return Value(name, dtype, shape)

    def output(self, value: Value, meta: TensorMeta) -> str:
        """Declare a value a graph output; returns the output's name."""
        taken = {item.name for item in (*self._inputs, *self._outputs)} | {item.name for item in self._tensors}
        if value.name in taken:
            # Runtimes want every output to be one node's own result; torch wants fresh storage.
            result = Value(self._fresh("Identity"), value.dtype)
            self._append("Identity", [value], (result,), {})
            value = result
        self._outputs.append(_value_info(value.name, value.dtype, meta.shape))
        return value.name

    def constant(self, data: Any, dtype: torch.dtype) -> Value:
        """A small literal: a number, a nested list or a tensor."""
        tensor = torch.as_tensor(data).to(dtype) if not isinstance(data, (int, float, bool)) else _number(data, dtype)
        raw = _raw_bytes(tensor)
        key = (dtype, tuple(tensor.shape), raw)
        known = self._initializers.get(key)
        if known is None:
            import onnx

            name = f"c{len(self._tensors)}"
            proto = onnx.TensorProto(name=name, data_type=ONNX_NUMBER[dtype], dims=list(tensor.shape), raw_data=raw)
            self._tensors.append(proto)
            known = Value(name, dtype, tuple(tensor.shape))
            self._initializers[key] = known
        return known

    def integers(self, numbers: Sequence[int]) -> Value:
        """A one-dimensional int64 literal."""
        value = self.constant(torch.tensor(list(numbers), dtype=torch.int64), torch.int64)
        self._literals[value.name] = list(numbers)
        return value

    def filled(self, sizes: Value, number: float, dtype: torch.dtype) -> Value:
        """A tensor of one number; ``sizes`` is one-dimensional int64."""
        import onnx

        raw = _raw_bytes(_number(number, dtype))
        proto = onnx.TensorProto(name="value", data_type=ONNX_NUMBER[dtype], dims=[1], raw_data=raw)
        return self.op("ConstantOfShape", sizes, dtype=dtype, value=proto)

    # --- nodes -------------------------------------------------------------------------------------------------------

    def op(self, operator: str, *inputs: Value | None, dtype: torch.dtype | None = None, **attributes: Any) -> Value:
        """One node with one result; see ``node``."""
        return self.node(operator, inputs, 1, dtype, **attributes)[0]

    def node(
        self,
        operator: str,
        inputs: Sequence[Value | None],
        outputs: int,
        dtype: torch.dtype | None = None,
        **attributes: Any,
    ) -> tuple[Value, ...]:
        """One node.

        Args:
            operator: ONNX name.
            inputs: ``None`` leaves an optional input out.
            outputs: how many of its results are wanted.
            dtype: of results with a type that follows from no input (``Cast``, ``ConstantOfShape``).
        """
        if operator in _REDUCTIONS and len(inputs) > 1 and not self.axes_are_inputs:
            axes = inputs[1]
            assert axes is not None, "a reduction whose axes are left out has one input"
            inputs, attributes = inputs[:1], {**attributes, "axes": self._literals[axes.name]}
        signature = _signature(operator, self.target.opset)
        bound = self._bind(operator, signature, inputs)
        reduction = attributes.get("reduction", "none")
        kernel = operator if reduction == "none" else f"{operator}:{reduction}"
        computed = {variable: self._kernel_type(kernel, actual) for variable, actual in bound.items()}
        ready = [
            item if item is None else self._convert(item, computed.get(signature.input_type(index), item.dtype))
            for index, item in enumerate(inputs)
        ]
        results = tuple(
            Value(self._fresh(operator), _result_type(signature.output_type(index), computed, dtype))
            for index in range(outputs)
        )
        self._append(operator, ready, results, attributes)
        self._made[results[0].name] = (operator, ready, attributes)
        return tuple(
            self._convert(result, bound.get(signature.output_type(index), result.dtype))
            for index, result in enumerate(results)
        )

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """A value in another element type; itself if it has it already."""
        return self._convert(value, dtype)

    @property
    def axes_are_inputs(self) -> bool:
        """Whether reductions and ``Pad`` take their axes as an input."""
        return self.target.opset >= _AXES_ARE_INPUTS_SINCE

    def before(self, value: Value, operator: str, **attributes: Any) -> Value | None:
        """What a value was before this very node made it; ``None`` if it was made by another."""
        made, inputs, found = self._made.get(value.name, ("", (), {}))
        if made != operator or any(found.get(key) != given for key, given in attributes.items()):
            return None
        return inputs[0]

    def shape(self, value: Value) -> Value:
        """The sizes of a value, one-dimensional int64; a literal where all of them are known."""
        if value.shape is not None and not any(is_symbolic(size) for size in value.shape):
            return self.integers([int(size) for size in value.shape])  # type: ignore[arg-type]
        return self._once("Shape", value, lambda: self.op("Shape", value))

    def size(self, value: Value, dimension: int) -> Value:
        """One size of a value, one-dimensional int64 with one element."""
        if value.shape is not None and not is_symbolic(value.shape[dimension]):
            return self.integers([int(value.shape[dimension])])  # type: ignore[arg-type]
        end = dimension + 1
        return self._once(f"Shape{dimension}", value, lambda: self.op("Shape", value, start=dimension, end=end))

    def model(self, name: str) -> onnx.ModelProto:
        """The finished model."""
        import onnx

        graph = onnx.helper.make_graph(self._nodes, name, self._inputs, self._outputs, initializer=self._tensors)
        opset = onnx.helper.make_opsetid("", self.target.opset)
        return onnx.helper.make_model(
            graph, opset_imports=[opset], ir_version=self.target.ir_version, producer_name="mixbackend"
        )

    # --- inside ------------------------------------------------------------------------------------------------------

    def _bind(self, operator: str, signature: _Signature, inputs: Sequence[Value | None]) -> dict[str, torch.dtype]:
        bound: dict[str, torch.dtype] = {}
        for index, item in enumerate(inputs):
            variable = signature.input_type(index)
            if item is None or variable.startswith("tensor("):
                continue
            if bound.setdefault(variable, item.dtype) is not item.dtype:
                raise LoweringError(f"{operator} mixes {bound[variable]} and {item.dtype}")
        return bound

    def _kernel_type(self, operator: str, dtype: torch.dtype) -> torch.dtype:
        native = self.target.kernels.get(operator)
        if native is None or dtype in native:
            return dtype
        for candidate in wider(dtype):
            if candidate in native:
                return candidate
        raise LoweringError(f"{operator} has no kernel for {dtype}")

    def _convert(self, value: Value, dtype: torch.dtype) -> Value:
        if value.dtype is dtype:
            return value

        def write() -> Value:
            result = Value(self._fresh("Cast"), dtype, value.shape)
            self._append("Cast", [value], (result,), {"to": ONNX_NUMBER[dtype]})
            return result

        return self._once(f"Cast{dtype}", value, write)

    def _once(self, what: str, value: Value, write: Any) -> Value:
        key = (what, value.name)
        if key not in self._pure:
            self._pure[key] = write()
        return self._pure[key]

    def _append(
        self, operator: str, inputs: Sequence[Value | None], results: Sequence[Value], attributes: Mapping[str, Any]
    ) -> None:
        import onnx

        names = ["" if item is None else item.name for item in inputs]
        while names and not names[-1]:
            names.pop()
        given = {key: value for key, value in attributes.items() if value is not None}
        self._nodes.append(onnx.helper.make_node(operator, names, [item.name for item in results], **given))

    def _fresh(self, operator: str) -> str:
        self._counter += 1
        return f"{operator}_{self._counter}"


def _result_type(variable: str, computed: Mapping[str, torch.dtype], given: torch.dtype | None) -> torch.dtype:
    if variable.startswith("tensor("):
        return _FIXED_TYPES[variable]
    if variable in computed:
        return computed[variable]
    if given is None:
        raise LoweringError(f"the type of a result ({variable}) follows from no input")
    return given


_FIXED_TYPES = {"tensor(float)": torch.float32, "tensor(int64)": torch.int64, "tensor(bool)": torch.bool}


def _number(number: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float64 if dtype.is_floating_point else None).to(dtype)


def _raw_bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def _value_info(name: str, dtype: torch.dtype, shape: tuple[Size, ...]) -> onnx.ValueInfoProto:
    import onnx

    # A compound size (2*s0) gets no name: runtimes would read it as an unrelated symbol.
    return onnx.helper.make_tensor_value_info(name, ONNX_NUMBER[dtype], [_dimension(size) for size in shape])


def _dimension(size: Size) -> int | str | None:
    if isinstance(size, int):
        return size
    return str(size) if str(size).isidentifier() else None
