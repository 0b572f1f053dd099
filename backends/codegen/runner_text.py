"""The Python text of a compiled program's run function: allocate, evaluate sizes, launch.

Place: the last step of the code generator; ``runner`` makes the function of it, here or in a later process.
Input: a program. Output: the text of ``run(inputs)``, which uses the names that ``runner`` gives it.
The function is straight-line Python, generated once: sizes that are numbers are written as numbers, symbols are read
from the inputs that carry them, aliases are views, the workspace comes from a list of free pieces. On a GPU, memory
comes from torch's allocator without its dispatcher, which takes as long as the rest of a launch.
Invariants: nothing is checked that holds by the contract (inputs have the traced strides and types); outputs are fresh
memory; what can fail happens before anything is written into an input. Of a program that computes no element nothing is
launched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sympy

from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo
from mixbackend.backends.codegen.ir.program import OutputBuffer, Program
from mixbackend.backends.codegen.ir.stages import OFFSET, SEED, AliasOutput, NumberInput, StridedInput
from mixbackend.contracts import CodegenError
from mixbackend.contracts.result_memory import LARGEST_KEPT_BYTES

_STATE = (SEED, OFFSET)


def runner_text(program: Program, device: str = "cpu", given: Collection[int] = ()) -> str:
    """The Python text of the run function.

    Args:
        program: what was compiled.
        device: where outputs live; on GPUs, which there are several of, it is the one that the inputs are on.
        given: places of inputs that ``runner`` knows by name (``x0``, ``x1``...) and that no call brings.

    Raises:
        CodegenError: a size depends on something that no input tells.
    """
    sources = _sources(program)
    text = _Text({symbol: f"n{place}" for place, symbol in enumerate(sources)})
    count = len(program.inputs) - (0 if program.draws == 0 else len(_STATE))
    lines = [f"({_tuple(f'x{place}' for place in range(count))}) = inputs"] if count else []
    if given:
        lines = [f"x{place} = inputs[{place}]" for place in range(count) if place not in given]
    used = _used_symbols(program)
    lines += [f"{text(symbol)} = {source}" for symbol, source in sources.items() if symbol in used]
    lines += _device_guard(program, device)
    device = _device(program, device)
    results = [f"y{place}" for place in range(len(program.outputs))]
    for result, output in zip(results, program.outputs, strict=True):
        lines.append(f"{result} = {_output(output, program, text, device)}")
    if not _is_empty(program):
        lines += [] if program.draws == 0 else [_random_state(program, text, device)]
        lines += _launch(program, results, text, device)
    lines.append(f"return [{', '.join(results)}]")
    return "def run(inputs):\n" + "".join(f"    {line}\n" for line in lines)


def _random_state(program: Program, text: _Text, device: str) -> str:
    """The state of torch's generator, which the last inputs of a program that draws stand for."""
    places = range(len(program.inputs) - len(_STATE), len(program.inputs))
    names = ", ".join(f"x{place}" for place in places)
    return f"{names} = take_random_state({device or repr('cpu')}, {text(program.draws)})"


def _sources(program: Program) -> dict[sympy.Symbol, str]:
    """Python text that gives each symbol: a number input, else a size or stride of a tensor."""
    found: dict[sympy.Symbol, str] = {}
    for place, item in enumerate(program.inputs):
        if isinstance(item, NumberInput):
            found.setdefault(item.symbol, f"x{place}")
    for place, item in enumerate(program.inputs):
        if not isinstance(item, StridedInput):
            continue
        for axis, (size, stride) in enumerate(zip(item.type.sizes, item.strides, strict=True)):
            for expression, method in ((size, "shape"), (stride, "stride()")):
                if sympy.sympify(expression).is_Symbol:
                    found.setdefault(expression, f"x{place}.{method}[{axis}]")
    return found


def _expressions(program: Program) -> list[sympy.Expr]:
    found: list[Any] = [program.draws, program.workspace_bytes, *(piece.start for piece in program.workspace)]
    for output in program.outputs:
        found += [*output.sizes, *output.strides]
        found += [output.offset] if isinstance(output, AliasOutput) else []
    for call in program.calls:
        found += [*call.parameters, *call.numbers]
    return [sympy.sympify(expression) for expression in found]


def _used_symbols(program: Program) -> set[sympy.Symbol]:
    return {symbol for expression in _expressions(program) for symbol in expression.free_symbols}


def _device(program: Program, device: str) -> str:
    """Python text of where memory is made; empty on the processor."""
    if device == "cpu":
        return ""
    tensors = (place for place, item in enumerate(program.inputs) if _is_given(item))
    place = next(tensors, None)
    return f"x{place}.device" if device == "cuda" and place is not None else repr(device)


def _device_guard(program: Program, device: str) -> list[str]:
    """On GPUs, memory is made on the current one: that is asked once for all of it."""
    where = _device(program, device) if device == "cuda" else ""
    if not where.endswith(".device"):
        return []
    tensor = where.removesuffix(".device")
    return [f"if {tensor}.get_device() != current_device(): return run_on_device_of({tensor}, run, inputs)"]


def _is_given(item: StridedInput | NumberInput) -> bool:
    return isinstance(item, StridedInput) and item.name not in _STATE


def _output(output: OutputBuffer | AliasOutput, program: Program, text: _Text, device: str) -> str:
    sizes, strides = text.tuple(output.sizes), text.tuple(output.strides)
    if isinstance(output, AliasOutput):
        place = next(place for place, item in enumerate(program.inputs) if item.name == output.input)
        return f"as_strided(x{place}, {sizes}, {strides}, x{place}.storage_offset() + {text(output.offset)})"
    if _is_on_gpu(device):
        return f"allocate({sizes}, {strides}, {output.dtype})"
    where = f", device={device}" if device else ""
    if not device and not _is_small(output):
        return f"new_result({sizes}, {strides}, {output.dtype})"
    if _is_contiguous(output):
        return f"empty({sizes}, dtype={output.dtype}{where})"
    return f"empty_strided({sizes}, {strides}, dtype={output.dtype}{where})"


def _is_on_gpu(device: str) -> bool:
    """Whether this text of ``_device`` names a GPU."""
    return device.endswith(".device") or device == repr("cuda")


def _is_contiguous(output: OutputBuffer) -> bool:
    """Whether the strides are those that ``torch.empty`` gives, for every value of the symbols."""
    expected = sympy.Integer(1)
    for size, stride in zip(reversed(output.sizes), reversed(output.strides), strict=True):
        size = sympy.sympify(size)
        if not size.is_positive or sympy.expand(sympy.sympify(stride) - expected) != 0:
            return False
        expected = expected * size
    return True


def _is_small(output: OutputBuffer) -> bool:
    """Whether its memory is certainly kept when it is freed."""
    size = sympy.Mul(*output.sizes) * output.dtype.itemsize
    return bool(size.is_Integer and size <= LARGEST_KEPT_BYTES)


def _is_empty(program: Program) -> bool:
    """Whether there is nothing to compute: no kernels, or no memory to write to that could have an element."""
    made = [output.sizes for output in program.outputs if isinstance(output, OutputBuffer)]
    inputs = (item for item in program.inputs if isinstance(item, StridedInput))
    made += [item.type.sizes for item in inputs if item.name in program.written]
    return not program.calls or all(any(sympy.sympify(size) == 0 for size in sizes) for sizes in made)


def _launch(program: Program, results: Sequence[str], text: _Text, device: str) -> list[str]:
    tensors = [f"x{place}" for place, item in enumerate(program.inputs) if isinstance(item, StridedInput)]
    outputs = zip(results, program.outputs, strict=True)
    tensors += [result for result, output in outputs if isinstance(output, OutputBuffer)]
    values = [value for call in program.calls for value in call.parameters]
    parameters = text.tuple([*values, *(piece.start for piece in program.workspace)])
    numbers = _tuple(f"float({text(symbol)})" for call in program.calls for symbol in call.numbers)
    if sympy.sympify(program.workspace_bytes) == 0:
        return [f"launch(({_tuple([*tensors, 'nothing'])}), {parameters}, ({numbers}))"]
    if _is_on_gpu(device):
        return [
            f"workspace = allocate(({text(program.workspace_bytes)},), (1,), torch.uint8)",
            f"launch(({_tuple([*tensors, 'workspace'])}), {parameters}, ({numbers}))",
        ]
    return [
        f"workspace = take({text(program.workspace_bytes)}{f', {device}' if device else ''})",
        f"launch(({_tuple([*tensors, 'workspace'])}), {parameters}, ({numbers}))",
        "give_back(workspace)",
    ]


class _Text:
    """Python text of index expressions.

    Args:
        names: of the local variables that hold the symbols.
    """

    def __init__(self, names: Mapping[sympy.Symbol, str]) -> None:
        self._names = names

    def tuple(self, expressions: Sequence[Any]) -> str:
        """Text of a tuple."""
        return f"({_tuple(self(expression) for expression in expressions)})"

    def __call__(self, expression: Any) -> str:
        """Text of one expression."""
        expression = sympy.sympify(expression)
        if expression.is_Integer:
            return str(int(expression))
        if expression.is_Symbol:
            if expression not in self._names:
                raise CodegenError(f"no input of the region tells the size {expression}")
            return self._names[expression]
        parts = [self(part) for part in expression.args]
        if expression.func in (FloorDiv, Modulo) and not expression.args[1].is_positive:
            # Where a divisor is 0, it is the size of a tensor without elements, and the quotient is not needed.
            parts[1] = f"({parts[1]} or 1)"
        joiner = {sympy.Add: " + ", sympy.Mul: " * ", FloorDiv: " // ", Modulo: " % "}.get(expression.func)
        if joiner is not None:
            return f"({joiner.join(parts)})"
        if expression.func is sympy.Pow and expression.args[1].is_Integer and expression.args[1] > 0:
            return f"({parts[0]} ** {parts[1]})"
        if expression.func in (sympy.Min, sympy.Max):
            return f"{expression.func.__name__.lower()}({', '.join(parts)})"
        raise CodegenError(f"the size {expression} has no Python text")


def _tuple(items: Any) -> str:
    return "".join(f"{item}, " for item in items).rstrip()
