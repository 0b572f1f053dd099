"""A program from a seed: each line was run by eager while it was drawn, so it is legal at every call's sizes.

Place: in front of ``execution``. Input: a seed. Output: a ``Program``.
Invariants: the same seed gives the same program with the same torch; what jumps is drawn on values that are the same in
every precision (``exact``: no arithmetic in floating point stands between them and the inputs).
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mixbackend.benchmarks.fuzz import operators as ops
from mixbackend.benchmarks.fuzz.leaves import MAKE
from mixbackend.benchmarks.fuzz.program import Call, Leaf, Program, Role, Statement

_LARGEST = 4000
_FLOATS = ("float32", "float64", "float16", "bfloat16")
_SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17)
_PLACES = {name: re.compile(rf"(?<![.\w]){name}(?![\w(=])") for name in ("x", "y", "z", "c", "i", "n", "d", "e", "k")}
_MADE = re.compile(r"\b([WV])\(((?:[^()]|\([^()]*\))*)\)")
_MOVES = ("copy_", "zero_", "fill_", "= k", "masked_fill_", "neg_", "scatter_(")
_SUMS = ("add(", "accumulate", "'sum'", "embedding_bag", "cross_entropy", "nll_loss", "index_copy", "* 2")


@dataclass
class _Value:
    """Something drawn so far.

    Attributes:
        name: of it.
        each: what it is at each call.
        exact: whether it is the same in every precision.
    """

    name: str
    each: list[Any]
    exact: bool

    @property
    def kind(self) -> str:
        """``f``, ``i``, ``b``, ``z`` (complex) or ``n`` (a Python number)."""
        value = self.each[0]
        if not isinstance(value, torch.Tensor):
            return "n"
        if value.dtype == torch.bool:
            return "b"
        if value.dtype.is_complex:
            return "z"
        return "f" if value.dtype.is_floating_point else "i"


class _Drawing:
    """A program being drawn."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        chance = self.random.random
        count = self.random.choice((1, 2, 2, 3, 3))
        self.grad = chance() < 0.65
        self.dynamic = self.random.choice((None, None, None, True, True, False))
        sizes = self.random.sample((2, 3, 4, 5, 6, 9), count) if self.dynamic or chance() < 0.3 else [4] * count
        self.calls = [
            Call((("s0", size),), self.random.randrange(1000), self.grad and chance() < 0.85) for size in sizes
        ]
        self.refused: tuple[str, ...] = ()
        self.leaves: list[Leaf] = []
        self.statements: list[Statement] = []
        self.values: list[_Value] = []
        self.spaces: list[dict[str, Any]] = []
        for call in self.calls:
            space: dict[str, Any] = {"WIDE": False, **dict(call.sizes)}
            exec(MAKE, space)
            self.spaces.append(space)

    # -- leaves --------------------------------------------------------------------------------------------------------

    def leaf(
        self,
        role: Role,
        shape: Sequence[int | str],
        dtype: str,
        values: str = "normal",
        layout: str = "contiguous",
        grad: bool = False,
    ) -> _Value:
        """A new leaf."""
        letter = {"input": "x", "parameter": "p", "buffer": "b"}[role]
        name = f"{letter}{sum(leaf.role == role for leaf in self.leaves)}"
        leaf = Leaf(name, role, tuple(shape), dtype, layout, values, self.random.randrange(1000), grad)
        each = []
        for call, space in zip(self.calls, self.spaces, strict=True):
            made = eval(leaf.text(f" + {call.seed}" if role == "input" else ""), space)
            if role == "parameter":
                made = torch.nn.Parameter(made, leaf.grad)
            space[name] = made
            each.append(made)
        self.leaves.append(leaf)
        value = _Value(name, each, values != "special" or dtype != "bfloat16")
        self.values.append(value)
        return value

    def inputs(self) -> None:
        """The arguments."""
        pick, chance = self.random.choice, self.random.random
        family = pick(("plain", "plain", "plain", "tokens", "image", "small"))
        rank = {"plain": pick((1, 2, 2, 3)), "tokens": 3, "image": 4, "small": pick((0, 1))}[family]
        base: list[int | str] = [pick(_SIZES) for _ in range(rank)]
        if family == "image":
            base = [pick((1, 2)), pick((1, 2, 3)), pick((4, 5, 7)), pick((4, 6, 7))]
        if family == "tokens":
            base = [pick((1, 2, 3)), pick((2, 3, 5)), pick((4, 8))]
        if base and (self.dynamic is not None or chance() < 0.5):
            base[0] = "s0"
        if rank and family == "plain" and chance() < 0.05:
            base[-1] = 0
        for _ in range(self.random.randint(1, 3)):
            shape = [1 if chance() < 0.12 else size for size in base]
            if family == "plain" and chance() < 0.2:
                shape = shape[self.random.randint(0, len(shape)) :]
            self.leaf("input", shape, *self._manner())
        if chance() < 0.35 and rank:
            self.leaf("input", base, "int64", "positions")
        if chance() < 0.2:
            self.leaf("input", base, "bool")

    def _dtype(self) -> str:
        narrow = ("float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")
        return "float32" if self.random.random() < 0.62 else self.random.choice(narrow)

    def _manner(self) -> tuple[str, str, str, bool]:
        pick, chance, dtype = self.random.choice, self.random.random, self._dtype()
        layouts = ("transposed", "stepped", "expanded", "offset", "channels_last", "padded", "computed")
        layout = pick(layouts) if chance() < 0.35 else "contiguous"
        values = pick(("special", "zeros", "whole")) if chance() < 0.15 else "normal"
        smooth = "float" in dtype or "complex" in dtype
        return dtype, values if "float" in dtype else "normal", layout, self.grad and smooth and chance() < 0.8

    # -- statements ----------------------------------------------------------------------------------------------------

    def step(self, tables: Sequence[tuple[Sequence[str], bool]] = (), value: _Value | None = None) -> bool:
        """Try to add a line; whether eager accepted it."""
        tensors = [item for item in self.values if item.kind != "n"]
        near = tensors[-3:] if self.random.random() < 0.6 else tensors
        value = value or self.random.choice(near)
        table, exact = self.random.choice(list(tables) or self._tables(value))
        template = self.random.choice(table)
        names = {"x": value}
        for letter in ("y", "z", "c", "i", "n"):
            if _PLACES[letter].search(template):
                other = self._operand(letter, value, table)
                if other is None:
                    return False
                names[letter] = other
        before = len(self.leaves)
        text = self._filled(template, names, value)
        if text is None:
            return False
        exact = exact and all(item.exact for item in names.values())
        exact = exact and not (value.kind in "fz" and any(word in template for word in _SUMS))
        if self._add(text, template, exact, value, table is ops.WRITES or table is ops.COUNTER_WRITES):
            return True
        for leaf in self.leaves[before:]:
            self.values = [item for item in self.values if item.name != leaf.name]
        del self.leaves[before:]
        return False

    def _filled(self, template: str, names: Mapping[str, _Value], value: _Value) -> str | None:
        rank = value.each[0].dim()

        def made(found: re.Match[str]) -> str:
            shapes = [
                eval(
                    f"({found[2]},)",
                    {"L": (*item.shape, 0)[rank - 1], "C": item.shape[1] if rank > 1 else rank and item.shape[0]},
                )
                for item in value.each
            ]
            if any(shape != shapes[0] for shape in shapes):
                raise ValueError("a parameter has one shape")
            dtype = str(value.each[0].dtype).removeprefix("torch.")
            if found[1] == "V":
                return self.leaf("buffer", shapes[0], dtype).name
            grad = self.grad and value.kind in "fz" and self.random.random() < 0.8
            return self.leaf("parameter", shapes[0], dtype, grad=grad).name

        try:
            text = _MADE.sub(made, template)
        except (ValueError, IndexError, RuntimeError):
            return None
        numbers = {letter: self.random.randrange(-1, max(rank, 1)) for letter in "de"}
        numbers["d"] = max(numbers["d"], 0) if ":d]" in template or "shape[d]" in template else numbers["d"]
        numbers["k"] = self.random.randint(-1, 2)
        for letter, found in {**{key: item.name for key, item in names.items()}, **numbers}.items():
            text = _PLACES[letter].sub(str(found), text)
        return text

    def _tables(self, value: _Value) -> list[tuple[Sequence[str], bool]]:
        always: list[tuple[Sequence[str], bool]] = [(ops.VIEWS, True)] * 3
        always += [(ops.CHOICES, True), (ops.JOINS, True), (ops.PADS, True), (ops.MADE, True), (ops.LOOKUPS, True)]
        match value.kind:
            case "f":
                found = [(ops.SMOOTH, False)] * 5 + [(ops.FLOAT_PAIRS, False)] * 4 + [(ops.FOLDS, False)] * 4
                found += [(ops.EXTREMES, False), (ops.CASTS, False)] + [(ops.LAYERS, False)] * 4
                found += [(ops.IMAGES, False)] * (12 if value.each[0].dim() == 4 else 0)
                if value.exact:
                    found += [(ops.JUMPING, True), (ops.COMPARISONS, True), (ops.POSITIONS, True)]
                return always + found
            case "i":
                found = [(ops.INTEGER, True)] * 2 + [(ops.INTEGER_PAIRS, True)] * 2 + [(ops.INTEGER_FOLDS, True)]
                return always + found + [(ops.COMPARISONS, True), (ops.POSITIONS, True)]
            case "z":
                return [(ops.COMPLEX, False)] * 4 + always[:4]
        return [*always, (ops.BOOL, True), (ops.BOOL, True), (ops.BOOL_FOLDS, True)]

    def _operand(self, letter: str, value: _Value, table: Sequence[str]) -> _Value | None:
        """Another value that fits."""
        wanted = {"c": "b", "i": "i", "n": "n"}.get(letter, value.kind)
        fitting = [item for item in self.values if item.kind == wanted]
        if letter == "i":
            fitting = [item for item in fitting if item.each[0].dtype == torch.int64 and item.each[0].dim()]
        if table is ops.COMPARISONS or table is ops.JUMPING or table is ops.POSITIONS:
            fitting = [item for item in fitting if item.exact]
        return self.random.choice(fitting) if fitting else None

    def _add(self, text: str, template: str, exact: bool, value: _Value, writes: bool) -> bool:
        first = sum(len(item.targets) for item in self.statements)
        before = [dict(space) for space in self.spaces]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results = [self._run(text, space, writes) for space in self.spaces]
        except Exception:  # whatever eager says of a line, it is left out
            self.spaces = before
            return False
        if writes:
            self.statements.append(Statement((), text))
            if not exact or not any(word in template for word in _MOVES):
                self._spoil(value)
            return True
        kinds = [
            tuple((type(item), getattr(item, "dtype", 0), getattr(item, "ndim", 0)) for item in one) for one in results
        ]
        if any(kind != kinds[0] for kind in kinds) or not all(_is_tame(item) for one in results for item in one):
            return False
        prefix = "v" if isinstance(results[0][0], torch.Tensor) else "n"
        targets = tuple(f"{prefix}{first + place}" for place in range(len(results[0])))
        for place, name in enumerate(targets):
            each = [one[place] for one in results]
            for space, item in zip(self.spaces, each, strict=True):
                space[name] = item
            self.values.append(_Value(name, each, exact or _kind_is_exact(each[0], value)))
        self.statements.append(Statement(targets, text))
        return True

    def _run(self, text: str, space: dict[str, Any], writes: bool) -> tuple[Any, ...]:
        if writes:
            exec(text, space)
            return ()
        result = eval(text, space)
        if isinstance(result, (torch.Tensor, int, float)):
            return (result,)
        found = tuple(result)
        if not 1 < len(found) <= 3 or not all(isinstance(item, torch.Tensor) for item in found):
            raise ValueError("not tensors")
        return found

    def _spoil(self, value: _Value) -> None:
        """Values that share memory with what was written are no longer exact."""
        if value.kind not in "fz":
            return
        place = value.each[0].untyped_storage().data_ptr()
        for item in self.values:
            if item.kind != "n" and item.each[0].untyped_storage().data_ptr() == place:
                item.exact = False

    # -- the rest ------------------------------------------------------------------------------------------------------

    def counter(self) -> None:
        """A number that is read from a buffer or an input, which is written later or before."""
        role: Role = self.random.choice(("buffer", "buffer", "input"))
        dtype = self.random.choice(("int64", "int64", "int32", "float32"))
        value = self.leaf(role, (), dtype, "counter")
        text = f"{value.name}.item()" if self.random.random() < 0.8 else f"int({value.name})"
        self._add(text, text, True, value, False)

    def whole(self) -> _Value | None:
        """A tensor of whole numbers, if there is one: there nothing is rounded."""
        found = [item for item in self.values if item.kind == "i"]
        return self.random.choice(found) if found else None

    def failure(self) -> None:
        """A line that eager refuses when it runs; its result is returned."""
        tensors = [item for item in self.values if item.kind in "fi" and item.each[0].dim()]
        if not tensors:
            return
        value = self.random.choice(tensors)
        text = self._filled(self.random.choice(ops.ERRORS), {"x": value}, value)
        if text is not None:
            self.statements.append(Statement(("v99",), text))
            self.refused = ("v99",)

    def edits(self) -> None:
        """Changes of weights between calls."""
        own = [leaf.name for leaf in self.leaves if leaf.role == "parameter"]
        for place in range(1, len(self.calls)):
            if own and self.random.random() < 0.6:
                text = self.random.choice(ops.EDITS).replace("model.W", f"model.{self.random.choice(own)}")
                self.calls[place] = replace(self.calls[place], edits=(text,))

    def results(self) -> tuple[str, ...]:
        """What is returned."""
        chance = self.random.random
        made = [item for item in self.values if item.kind != "n"]
        computed = [item for item in made if item.name[0] == "v"] or made
        names = [item.name for item in made if chance() < (0.25 if item.name[0] == "v" else 0.07)]
        names.append(computed[-1].name)
        if chance() < 0.05:
            names.append(self.random.choice(names))
        self.random.shuffle(names)
        return (*names, *self.refused)

    def program(self) -> Program:
        """As it is so far."""
        results = self.results()
        ones, scalars = self.random.random() < 0.3, self.random.random() < 0.5
        leaves, calls = tuple(self.leaves), tuple(self.calls)
        return Program(leaves, tuple(self.statements), results, calls, self.dynamic, scalars, ones)


def _kind_is_exact(result: Any, value: _Value) -> bool:
    """Whole numbers made of exact values are exact."""
    return value.exact and not (
        isinstance(result, torch.Tensor) and (result.is_floating_point() or result.is_complex())
    )


def _is_tame(item: Any) -> bool:
    """Small, and no number so large that the next line overflows."""
    if not isinstance(item, torch.Tensor):
        return abs(item) < 1e4
    if item.numel() > _LARGEST or item.dim() > 5:
        return False
    if not (item.is_floating_point() or item.is_complex()) or not item.numel():
        return True
    finite = item.detach().abs().double().nan_to_num(0.0, 0.0, 0.0)
    return float(finite.max()) < (300 if item.dtype == torch.float16 else 1e4)


def draw(seed: int, longest: int = 14) -> Program:
    """The program of a seed; legal line by line, whether it also runs as a whole ``execution`` tells.

    Args:
        seed: of everything.
        longest: so many lines at most.
    """
    torch.manual_seed(seed)
    drawing = _Drawing(seed)
    drawing.inputs()
    chance, steps = drawing.random.random, drawing.random.randint(2, longest)
    writes, fails = chance() < 0.45, chance() < 0.03
    counted, draws_random, breaks = chance() < 0.2, chance() < 0.15, chance() < 0.2
    if counted:
        drawing.counter()
    tried = 0
    while len(drawing.statements) < steps and tried < 12 * steps:
        tried += 1
        kind = chance()
        if writes and kind < 0.15:
            drawing.step([(ops.WRITES, True)])
        elif counted and kind < 0.25:
            names = [item for item in drawing.values if item.name[0] in "bx" and item.each[0].dim() == 0]
            drawing.step([(ops.COUNTER_WRITES, True)], drawing.random.choice(names) if names else None)
        elif counted and kind < 0.45:
            # Numbers are used; a float may be so large that it jumps.
            drawing.step([(ops.NUMBERS, True)], drawing.whole() if kind < 0.35 else None)
        elif draws_random and kind < 0.35:
            drawing.step([(ops.RANDOM, False)])
        elif breaks and kind < 0.4:
            drawing.statements.append(Statement((), "torch._dynamo.graph_break()"))
        else:
            drawing.step()
    drawing.edits()
    if fails:
        drawing.failure()
    return drawing.program()
