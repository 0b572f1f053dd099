"""The meaning of programs: memory as a program describes it, and its kernels run by ``kernels``.

Place: the oracle for what ``schedule`` makes of a graph; the run-time counterpart is ``runner`` with a compiled target.
Input: a program and actual inputs in the strides it declares. Output: its outputs.
Invariants: workspace and outputs start as garbage; a kernel gets exactly the memory that a call names.
Non-goals: speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from mixbackend.backends.codegen.interpret.indices import Value, evaluate_size
from mixbackend.backends.codegen.interpret.kernels import interpret_kernel
from mixbackend.backends.codegen.interpret.memory import flat_memory, garbage
from mixbackend.backends.codegen.interpret.symbols import Input, solve_symbols
from mixbackend.backends.codegen.interpret.templates import interpret_template
from mixbackend.backends.codegen.ir.kernel import TemplateKernel
from mixbackend.backends.codegen.ir.program import KernelCall, OutputBuffer, Program, WorkspaceBuffer
from mixbackend.backends.codegen.ir.stages import AliasOutput
from mixbackend.contracts import IrError


@torch.no_grad()
def interpret_program(program: Program, inputs: Sequence[Input]) -> list[torch.Tensor]:
    """Run a program.

    Args:
        inputs: tensors and numbers in the order of ``program.inputs``, tensors in their declared strides.

    Raises:
        InputRangeError: a value had to be corrected; nothing is written into an input then.
        IrError: the program is wrong, or an input is not what it declares.
    """
    values = solve_symbols(program.inputs, inputs, strides=True)
    named = zip(program.inputs, inputs, strict=True)
    tensors = {item.name: actual for item, actual in named if isinstance(actual, torch.Tensor)}
    outputs = [_output(item, tensors, values) for item in program.outputs]
    memory = {name: flat_memory(tensor) for name, tensor in tensors.items()}
    for item, tensor in zip(program.outputs, outputs, strict=True):
        if isinstance(item, OutputBuffer):
            memory[item.name] = flat_memory(tensor)
    workspace = garbage(evaluate_size(program.workspace_bytes, values), torch.uint8)
    for piece in program.workspace:
        memory[piece.name] = _piece(piece, workspace, values)
    for call in program.calls:
        _run(call, memory, values)
    return outputs


def _output(
    item: OutputBuffer | AliasOutput, tensors: dict[str, torch.Tensor], values: dict[sympy.Symbol, Value]
) -> torch.Tensor:
    sizes = [evaluate_size(size, values) for size in item.sizes]
    strides = [evaluate_size(stride, values) for stride in item.strides]
    if isinstance(item, AliasOutput):
        base = tensors[item.input]
        return base.as_strided(sizes, strides, base.storage_offset() + evaluate_size(item.offset, values))
    result = torch.empty_strided(sizes, strides, dtype=item.dtype)
    memory = flat_memory(result)
    memory.copy_(garbage(memory.numel(), item.dtype))
    return result


def _piece(piece: WorkspaceBuffer, workspace: torch.Tensor, values: dict[sympy.Symbol, Value]) -> torch.Tensor:
    start, size = evaluate_size(piece.start, values), evaluate_size(piece.size, values)
    if start < 0 or start + size > workspace.numel():
        raise IrError(f"{piece} is outside the workspace of {workspace.numel()} bytes")
    return workspace[start : start + size].view(piece.dtype)


def _run(call: KernelCall, memory: dict[str, torch.Tensor], values: dict[sympy.Symbol, Value]) -> None:
    missing = [name for name in call.buffers if name not in memory]
    if missing:
        raise IrError(f"there is no memory {', '.join(missing)}", where=str(call))
    buffers = {item.name: memory[name] for item, name in zip(call.kernel.buffers, call.buffers, strict=True)}
    pairs = zip(call.kernel.parameters, call.parameters, strict=True)
    parameters = {symbol: evaluate_size(value, values) for symbol, value in pairs}
    numbers = {symbol: float(values[given]) for symbol, given in zip(call.kernel.numbers, call.numbers, strict=True)}
    if isinstance(call.kernel, TemplateKernel):
        interpret_template(call.kernel, buffers, parameters)
        return
    interpret_kernel(call.kernel, buffers, parameters, numbers)
