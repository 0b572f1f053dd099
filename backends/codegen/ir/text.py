"""Text of expressions, stages and stage graphs.

Place: ``str()`` of the dataclasses of ``scalar`` and ``stages``; read by people, errors, golden files and cache keys.
Output: complete and deterministic: equal values have equal text, and text depends on neither addresses nor hashing.
Invariants: a part that is used more than once, or is long, is named once (``%0 = ...``) above its first use.
Non-goals: reading text back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from mixbackend.backends.codegen.ir.grammar import expressions_of, walk
from mixbackend.backends.codegen.ir.scalar import Apply, Bindings, Constant, Expr, IndexValue, Load, Local, Read
from mixbackend.backends.codegen.ir.stages import (
    AliasOutput,
    Concatenate,
    GraphOutput,
    Map,
    NumberInput,
    Reduce,
    Scan,
    Scatter,
    Stage,
    StageGraph,
    StridedInput,
    Template,
    TensorType,
    targets_of,
)

INDENT = "    "
_LONG = 90
_SHORT_NAMES = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
}


def type_text(dtype: torch.dtype) -> str:
    """``f32`` for ``torch.float32``."""
    return _SHORT_NAMES.get(dtype, str(dtype).removeprefix("torch."))


def listing(items: Iterable[Any]) -> str:
    """``[a, b]`` of anything with text."""
    return f"[{', '.join(map(str, items))}]"


class ExpressionTexts:
    """Text of expressions that are printed together.

    Attributes:
        lines: definitions of the parts that have a name, in order.
    """

    def __init__(self, roots: Sequence[Expr]) -> None:
        self.lines: list[str] = []
        self._texts: dict[Expr, str] = {}
        uses = Counter(part for node in walk(*roots) for part in expressions_of(node))
        uses.update(roots)
        for node in walk(*roots):
            text = self._inner(node)
            is_leaf = isinstance(node, (Constant, IndexValue, Local))
            is_long = len(text) > _LONG and node not in roots
            if not is_leaf and (uses[node] > 1 or is_long):
                name = f"%{len(self.lines)}"
                self.lines.append(f"{name} = {text}")
                text = name
            self._texts[node] = text

    def __call__(self, node: Expr) -> str:
        return self._texts[node]

    def _inner(self, node: Expr) -> str:
        match node:
            case Constant():
                return f"{node.value}:{type_text(node.dtype)}"
            case IndexValue():
                return f"index({node.expression}):{type_text(node.dtype)}"
            case Local():
                return node.name
            case Load():
                return f"{node.tensor}{self.place(node.index, node.bindings, node.mask, node.other)}"
            case Read():
                return f"{node.buffer}{self.place((node.offset,), node.bindings, node.mask, node.other)}"
            case Apply():
                name = f"to_{type_text(node.dtype)}" if node.op == "to_dtype" else node.op
                return f"{name}({', '.join(self._texts[argument] for argument in node.arguments)})"

    def place(self, index: Iterable[Any], bindings: Bindings = (), mask: Expr | None = None, other: Any = None) -> str:
        """``[index; symbol = value; if mask else other]``."""
        parts = [", ".join(map(str, index))]
        parts += [f"{symbol} = {self._texts[value]}" for symbol, value in bindings]
        if mask is not None:
            parts.append(f"if {self._texts[mask]}" + ("" if other is None else f" else {other}"))
        return f"[{'; '.join(parts)}]"


def expression_text(expression: Expr) -> str:
    """An expression, one line per named part."""
    texts = ExpressionTexts((expression,))
    return "\n".join([*texts.lines, texts(expression)])


def tensor_type_text(type_: TensorType) -> str:
    """``f32[3, s0]``."""
    return f"{type_text(type_.dtype)}{listing(type_.sizes)}"


def stage_text(stage: Stage, types: Mapping[str, TensorType] | None = None) -> str:
    """A stage; storage types of its targets are added where they are known."""
    texts = ExpressionTexts(expressions_of(stage))
    lines = _stage_lines(stage, texts)
    storage = ", ".join(type_text(types[name].dtype) for name in targets_of(stage) if name in types) if types else ""
    notes = [f"stored {storage}"] if storage else []
    notes += [f"from {', '.join(stage.origins)}"] if stage.origins else []
    if notes:
        lines[0] += f"  # {'; '.join(notes)}"
    return "\n".join([lines[0], *(INDENT + line for line in [*texts.lines, *lines[1:]])])


def _stage_lines(stage: Stage, texts: ExpressionTexts) -> list[str]:
    """Headline, then what follows the named parts; a stage without named parts may be one line."""
    match stage:
        case Map():
            word = "map apart" if stage.apart else "map"
            return _with_value(f"{word} {stage.target}{listing(stage.loops)}", stage.value, texts)
        case Reduce():
            names = ", ".join(name or "_" for name in stage.targets)
            names = names if len(stage.targets) == 1 else f"({names})"
            head = f"reduce {stage.kind} {names}{listing(stage.loops)} over {listing(stage.reduced)}"
            return _with_value(head, stage.value, texts)
        case Scan():
            axis = _axis(stage)
            return _with_value(
                f"scan {stage.kind} {stage.target}{listing(stage.loops)} along {axis}", stage.value, texts
            )
        case Concatenate():
            axis = _axis(stage)
            parts = [f"{axis}<{part.size} at {part.start} = {texts(part.value)}" for part in stage.parts]
            return [f"concatenate {stage.target}{listing(stage.loops)} along {axis}", *parts]
        case Scatter():
            place = texts.place(stage.destination, stage.bindings, stage.mask)
            return [
                f"scatter {stage.mode} {stage.target}{listing(stage.target_loops)} for {listing(stage.loops)}",
                f"base = {texts(stage.base)}",
                f"{stage.target}{place} {mode_sign(stage.mode)} {texts(stage.value)}",
            ]
        case Template():
            results = [f"{listing(item.loops)} to {item.target or '_'}{listing(item.index)}" for item in stage.results]
            operands = [
                "nothing" if item is None else f"{listing(item.loops)} from {texts(item.value)}"
                for item in stage.operands
            ]
            finish = [] if stage.finish is None else [f"finish {texts(stage.finish)}"]
            return [f"template {stage.name}({options_text(stage.options)})", *operands, *finish, *results]


def options_text(options: Iterable[tuple[str, bool | float]]) -> str:
    """``causal = True, scale = 0.125``."""
    return ", ".join(f"{name} = {value}" for name, value in options)


def mode_sign(mode: str) -> str:
    """``=`` for ``set``, ``add=`` for ``add``."""
    return "=" if mode == "set" else f"{mode}="


def _axis(stage: Scan | Concatenate) -> str:
    known = -len(stage.loops) <= stage.axis < len(stage.loops)
    return str(stage.loops[stage.axis].index) if known else f"axis {stage.axis}"


def _with_value(head: str, value: Expr, texts: ExpressionTexts) -> list[str]:
    if texts.lines:
        return [f"{head} =", texts(value)]
    return [f"{head} = {texts(value)}"]


def input_text(item: StridedInput | NumberInput) -> str:
    """``input x: f32[3, 4] strides [4, 1]``."""
    if isinstance(item, NumberInput):
        return f"input {item.name}: number {item.symbol}"
    return f"input {item.name}: {tensor_type_text(item.type)} strides {listing(item.strides)}"


def output_text(item: GraphOutput | AliasOutput) -> str:
    """``output y = y.out strides [4, 1]``."""
    if isinstance(item, GraphOutput):
        seen = item.returned
        outside = "" if seen is None else f" returned as {listing(seen.sizes)} strides {listing(seen.strides)}"
        head = f"output {item.name}" if item.destination is None else f"into {item.destination}"
        return f"{head} = {item.tensor} strides {listing(item.strides)}{outside}"
    where = f"{listing(item.sizes)} strides {listing(item.strides)} offset {item.offset}"
    return f"output {item.name} = view of {item.input} {where}"


def graph_text(graph: StageGraph) -> str:
    """A stage graph, one line or block per input, stage and output."""
    types = dict(graph.types)
    blocks = [
        *map(input_text, graph.inputs),
        *(stage_text(stage, types) for stage in graph.stages),
        *map(output_text, graph.outputs),
        *([] if graph.draws == 0 else [f"draws {graph.draws}"]),
    ]
    return "\n".join(["stages", *(INDENT + line for block in blocks for line in block.split("\n"))])
