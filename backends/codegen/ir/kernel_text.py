"""Text of kernels and programs.

Place: ``str()`` of the dataclasses of ``kernel`` and ``program``; read by people, errors, golden files and cache keys.
Output: complete and deterministic, like ``ir.text``.
Invariants: equal kernels have equal text: origins are printed with calls, not with kernels.
Non-goals: reading text back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_args

from mixbackend.backends.codegen.ir.grammar import expressions_of
from mixbackend.backends.codegen.ir.kernel import (
    Accumulate,
    AnyKernel,
    BufferParameter,
    BufferView,
    Carry,
    Kernel,
    KernelLoop,
    Let,
    Nest,
    Scratch,
    Statement,
    Store,
    TemplateKernel,
)
from mixbackend.backends.codegen.ir.printed import text_of
from mixbackend.backends.codegen.ir.program import KernelCall, OutputBuffer, Program, WorkspaceBuffer
from mixbackend.backends.codegen.ir.scalar import Expr
from mixbackend.backends.codegen.ir.stages import (
    AliasOutput,
    GraphOutput,
    NumberInput,
    Stage,
    StageGraph,
    StridedInput,
    TensorType,
)
from mixbackend.backends.codegen.ir.text import (
    INDENT,
    ExpressionTexts,
    expression_text,
    graph_text,
    input_text,
    listing,
    mode_sign,
    options_text,
    output_text,
    stage_text,
    tensor_type_text,
    type_text,
)


def loop_text(loop: KernelLoop) -> str:
    """``vector i0<p0``."""
    return f"{loop.mode} {loop.index}<{loop.extent}"


def loops_text(loops: Sequence[KernelLoop]) -> str:
    """Loops from the outermost to the innermost."""
    return f"[{', '.join(map(loop_text, loops))}]"


def statement_text(statement: Statement) -> str:
    """A statement, one line per named part."""
    texts = ExpressionTexts(expressions_of(statement))
    value = texts(statement.value)
    match statement:
        case Let():
            line = f"{statement.name} = {value}"
        case Accumulate():
            line = f"accumulate {statement.kind} {', '.join(statement.names)} with {value}"
        case Carry():
            line = f"carry {statement.kind} {statement.name} with {value}"
        case Store():
            place = texts.place((statement.offset,), statement.bindings, statement.mask)
            atomic = "atomic " if statement.atomic else ""
            line = f"{statement.buffer}{place} {atomic}{mode_sign(statement.mode)} {value}"
    return "\n".join([*texts.lines, line])


def nest_text(nest: Nest) -> str:
    """A nest: its loops, then what runs at each point."""
    lines = [f"nest {loops_text(nest.loops)}"]
    if not nest.reduced:
        return "\n".join([*lines, *_indented(map(statement_text, nest.body)), *_finish(nest)])
    lines.append(f"{INDENT}reduce {loops_text(nest.reduced)}")
    lines += [INDENT + line for line in _indented(map(statement_text, nest.body))]
    return "\n".join([*lines, *_finish(nest)])


def _finish(nest: Nest) -> list[str]:
    if not nest.finish:
        return []
    return [f"{INDENT}finish", *(INDENT + line for line in _indented(map(statement_text, nest.finish)))]


def buffer_text(item: BufferParameter) -> str:
    """``read b0: f32``."""
    return f"{item.access} {item.name}: {type_text(item.dtype)}"


def scratch_text(item: Scratch) -> str:
    """``scratch s0: f32[64]``."""
    return f"scratch {item.name}: {type_text(item.dtype)}[{item.elements}]"


def kernel_text(kernel: Kernel, name: str = "kernel") -> str:
    """A kernel: what it gets, then its nests."""
    lines = [f"{name}{listing(kernel.parameters)}"]
    lines += [f"numbers {listing(kernel.numbers)}"] if kernel.numbers else []
    lines += [*map(buffer_text, kernel.buffers), *map(scratch_text, kernel.scratch)]
    lines += [f"work {kernel.work}", f"outer {loops_text(kernel.outer)}"]
    nests = [INDENT + line for line in _indented(map(nest_text, kernel.nests))]
    return "\n".join([lines[0], *(INDENT + line for line in lines[1:]), *nests])


def view_text(view: BufferView) -> str:
    """``b0 as [p0, p1] strides [p2, 1] offset p3``."""
    return f"{view.buffer} as {listing(view.sizes)} strides {listing(view.strides)} offset {view.offset}"


def template_text(kernel: TemplateKernel, name: str = "kernel") -> str:
    """A template: what it gets, then which tensors are its operands and results."""
    operands = [f"from {'nothing' if view is None else view_text(view)}" for view in kernel.operands]
    results = [f"to {'nothing' if view is None else view_text(view)}" for view in kernel.results]
    head = [*map(buffer_text, kernel.buffers), f"template {kernel.name}({options_text(kernel.options)})"]
    finish = [] if kernel.finish is None else [f"finish {expression_text(kernel.finish)}"]
    lines = [*head, *operands, *finish, *results]
    return "\n".join([f"{name}{listing(kernel.parameters)}", *(INDENT + line for line in lines)])


def any_kernel_text(kernel: AnyKernel, name: str = "kernel") -> str:
    """A kernel of either kind."""
    return template_text(kernel, name) if isinstance(kernel, TemplateKernel) else kernel_text(kernel, name)


def call_text(call: KernelCall, name: str = "kernel") -> str:
    """``call kernel0(x, y) with p0 = 3``."""
    pairs = [f"{symbol} = {value}" for symbol, value in _pairs(call.kernel.parameters, call.parameters)]
    pairs += [f"{symbol} = {value}" for symbol, value in _pairs(call.kernel.numbers, call.numbers)]
    given = f" with {', '.join(pairs)}" if pairs else ""
    origins = f"  # from {', '.join(call.origins)}" if call.origins else ""
    at_once = "" if call.launch is None else f" in launch {call.launch}"
    return f"call {name}({', '.join(call.buffers)}){given}{at_once}{origins}"


def program_text(program: Program) -> str:
    """A program: memory, calls, distinct kernels, refusals."""
    names = {kernel: f"kernel{place}" for place, kernel in enumerate(program.kernels)}
    blocks = [
        *map(input_text, program.inputs),
        *(
            output_buffer_text(item) if isinstance(item, OutputBuffer) else output_text(item)
            for item in program.outputs
        ),
        *(f"written {name}" for name in program.written),
        *([] if program.draws == 0 else [f"draws {program.draws}"]),
        f"workspace {program.workspace_bytes} bytes",
        *(INDENT + workspace_text(item) for item in program.workspace),
        *(call_text(call, names[call.kernel]) for call in program.calls),
        *(any_kernel_text(kernel, name) for kernel, name in names.items()),
        *(f"not fused: {refusal}" for refusal in program.refusals),
    ]
    return "\n".join(["program", *_indented(blocks)])


def output_buffer_text(item: OutputBuffer) -> str:
    """``output y: f32[3, 4] strides [4, 1]``."""
    return f"output {item.name}: {type_text(item.dtype)}{listing(item.sizes)} strides {listing(item.strides)}"


def workspace_text(item: WorkspaceBuffer) -> str:
    """``w0: f32 at 0, 64 bytes``."""
    return f"{item.name}: {type_text(item.dtype)} at {item.start}, {item.size} bytes"


def _pairs(symbols: Sequence[object], values: Sequence[object]) -> list[tuple[object, object]]:
    """Symbols with their values; what is missing on either side shows as ``?``."""
    length = max(len(symbols), len(values))
    missing = ["?"] * length
    return list(zip([*symbols, *missing][:length], [*values, *missing][:length], strict=True))


def _indented(blocks: Iterable[str]) -> list[str]:
    return [INDENT + line for block in blocks for line in block.split("\n")]


_TEXTS: tuple[tuple[tuple[type, ...], Callable[[Any], str]], ...] = (
    (get_args(Expr), expression_text),
    (get_args(Stage), stage_text),
    ((TensorType,), tensor_type_text),
    ((StridedInput, NumberInput), input_text),
    ((GraphOutput, AliasOutput), output_text),
    ((StageGraph,), graph_text),
    ((KernelLoop,), loop_text),
    ((BufferParameter,), buffer_text),
    ((Scratch,), scratch_text),
    (get_args(Statement), statement_text),
    ((Nest,), nest_text),
    (get_args(AnyKernel), any_kernel_text),
    ((BufferView,), view_text),
    ((OutputBuffer,), output_buffer_text),
    ((WorkspaceBuffer,), workspace_text),
    ((KernelCall,), call_text),
    ((Program,), program_text),
)
for _kinds, _text in _TEXTS:
    for _kind in _kinds:
        text_of.register(_kind, _text)
