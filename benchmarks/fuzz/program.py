"""A random program as a value, and the Python text it stands for.

Place: made by ``generate`` and ``shrinking``, run by ``execution`` and, as a script of its own, by ``script``.
Input: leaves (inputs, parameters, buffers), statements over names, results, calls. Output: text that defines
``Program`` (a module), ``inputs(call)``, ``edit(model, call)`` and a few constants.
Invariants: the text depends on the program alone; the wide text computes the same in float64 from the same numbers,
which are rounded to the program's own types first.
Non-goals: knowing whether the program is legal; eager tells.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

Role = Literal["input", "parameter", "buffer"]

_WIDER = {"float32": "float64", "float16": "float64", "bfloat16": "float64", "complex64": "complex128"}
_NARROW = re.compile(r"\btorch\.(float32|float16|bfloat16|complex64)\b")
_NAME = re.compile(r"(?<![.\w])([a-z]\d+)(?!\w)")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor that the program does not compute.

    Attributes:
        name: ``x0``, ``p0``, ``b0``...
        role: an argument of each call, or a parameter or buffer of the module.
        shape: numbers, and names of symbolic sizes.
        dtype: its name.
        layout: how it lies in memory, as ``make`` knows it.
        values: what is in it, as ``make`` knows it.
        seed: of its values.
        grad: whether it requires a gradient.
    """

    name: str
    role: Role
    shape: tuple[int | str, ...]
    dtype: str
    layout: str = "contiguous"
    values: str = "normal"
    seed: int = 0
    grad: bool = False

    def text(self, more: str = "") -> str:
        """The call of ``make``."""
        shape = ", ".join(str(size) for size in self.shape) + ("," if len(self.shape) == 1 else "")
        options = [f"layout={self.layout!r}"] if self.layout != "contiguous" else []
        options += [f"values={self.values!r}"] if self.values != "normal" else []
        options += ["grad=True"] if self.grad and self.role == "input" else []
        return f"make({', '.join([f'({shape})', f'torch.{self.dtype}', f'{self.seed}{more}', *options])})"


@dataclass(frozen=True, slots=True)
class Statement:
    """One line.

    Attributes:
        targets: names that it binds, none if it only writes.
        text: the right side, or the whole line.
    """

    targets: tuple[str, ...]
    text: str

    @property
    def line(self) -> str:
        """Of Python."""
        return f"{', '.join(self.targets)} = {self.text}" if self.targets else self.text

    @property
    def names(self) -> frozenset[str]:
        """Names that it reads or writes into."""
        return frozenset(_NAME.findall(self.text))

    def renamed(self, names: dict[str, str]) -> Statement:
        """With other names in the text."""
        return Statement(self.targets, _NAME.sub(lambda found: names.get(found[1], found[1]), self.text))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the program.

    Attributes:
        sizes: of the symbolic sizes.
        seed: added to the seeds of the inputs, and of random ops.
        grad: whether gradients are on, and a backward follows.
        edits: lines that are run on ``model`` before.
    """

    sizes: tuple[tuple[str, int], ...] = ()
    seed: int = 0
    grad: bool = False
    edits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """All of it.

    Attributes:
        leaves: what it starts from.
        statements: in order.
        results: names that it returns.
        calls: what is called, in order, on one compiled module.
        dynamic: of ``torch.compile``.
        scalars: whether Dynamo keeps ``.item()`` within graphs.
        ones: whether gradients of results are ones that are expanded from a single number.
    """

    leaves: tuple[Leaf, ...]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]
    calls: tuple[Call, ...]
    dynamic: bool | None = None
    scalars: bool = False
    ones: bool = False

    def text(self, wide: bool = False) -> str:
        """Plain torch code, without imports and without ``make``."""
        lines = [f"WIDE = {wide}", f"DYNAMIC = {self.dynamic}", f"SCALARS = {self.scalars}", f"ONES = {self.ones}"]
        lines += [f"GRAD = {[call.grad for call in self.calls]}", f"SEEDS = {[call.seed for call in self.calls]}"]
        lines += ["", "", *self._module(wide), "", "", *self._inputs(), "", "", *self._edit(wide), ""]
        return "\n".join(lines)

    def _module(self, wide: bool) -> list[str]:
        own = [leaf for leaf in self.leaves if leaf.role != "input"]
        lines = ["class Program(torch.nn.Module):", "    def __init__(self):", "        super().__init__()"]
        for leaf in own:
            if leaf.role == "parameter":
                lines.append(f"        self.{leaf.name} = torch.nn.Parameter({leaf.text()}, requires_grad={leaf.grad})")
            else:
                lines.append(f"        self.register_buffer({leaf.name!r}, {leaf.text()})")
        arguments = "".join(f", {leaf.name}" for leaf in self.leaves if leaf.role == "input")
        lines += ["", f"    def forward(self{arguments}):"]
        lines += [f"        {leaf.name} = self.{leaf.name}" for leaf in own]
        lines += [f"        {_widened(item.line) if wide else item.line}" for item in self.statements]
        return [*lines, f"        return [{', '.join(self.results)}]"]

    def _inputs(self) -> list[str]:
        lines = ["def inputs(call):"]
        for name in dict(self.calls[0].sizes):
            lines.append(f"    {name} = {[dict(call.sizes)[name] for call in self.calls]}[call]")
        made = [f"{leaf.text(' + SEEDS[call]')}" for leaf in self.leaves if leaf.role == "input"]
        return [*lines, "    return [", *(f"        {item}," for item in made), "    ]"]

    def _edit(self, wide: bool) -> list[str]:
        lines = ["def edit(model, call):"]
        for place, call in enumerate(self.calls):
            for text in call.edits:
                lines.append(f"    if call == {place}: {_widened(text) if wide else text}")
        return lines if len(lines) > 1 else [*lines, "    pass"]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def program_from_dict(data: dict[str, Any]) -> Program:
    """The inverse of ``Program.to_dict``, also after JSON made lists of tuples."""
    leaves = tuple(Leaf(**{**item, "shape": tuple(item["shape"])}) for item in data["leaves"])
    statements = tuple(Statement(tuple(item["targets"]), item["text"]) for item in data["statements"])
    calls = tuple(
        Call(tuple((name, size) for name, size in item["sizes"]), item["seed"], item["grad"], tuple(item["edits"]))
        for item in data["calls"]
    )
    others = {name: data[name] for name in ("dynamic", "scalars", "ones")}
    return Program(leaves, statements, tuple(data["results"]), calls, **others)


def _widened(line: str) -> str:
    return _NARROW.sub(lambda found: f"torch.{_WIDER[found[1]]}", line)
