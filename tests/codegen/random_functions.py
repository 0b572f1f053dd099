"""Random functions: a few lines of plain torch on a few inputs, drawn by Hypothesis.

Used by property tests of the code generator. A function is source text, so a failing example can be read and run alone.
Every line was run by eager once while it was drawn: it is legal, and small.

Where a result may be off by rounding, what jumps (comparisons, ``floor``, positions of extremes) is not drawn on it: a
value is exact if no arithmetic stands between it and the inputs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import hypothesis.strategies as st
import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int64, torch.int32)
_SIZES = (1, 2, 3, 4, 5, 7, 17)
_LARGEST = 3000
_NAMESPACE = {"torch": torch, "F": torch.nn.functional}


@dataclass(frozen=True)
class Input:
    """One argument.

    Attributes:
        shape, dtype: of it.
        layout: how it lies in memory: ``contiguous``, ``transposed``, ``stepped``, ``expanded``, ``offset``.
        special: whether some values are NaN, infinite, or zero with a sign.
        seed: of its values.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: str
    special: bool
    seed: int

    def make(self) -> torch.Tensor:
        """A fresh tensor."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = self.shape
        if not shape:
            return self._values((1,), generator)[0]
        match self.layout:
            case "transposed":
                return self._values(shape[::-1], generator).permute(*reversed(range(len(shape))))
            case "stepped":
                return self._values((*shape[:-1], 2 * shape[-1]), generator)[..., ::2]
            case "expanded":
                return self._values((1, *shape[1:]), generator).expand(shape)
            case "offset":
                return self._values((shape[0] + 1, *shape[1:]), generator)[1:]
        return self._values(shape, generator)

    def _values(self, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        if self.dtype == torch.bool:
            return torch.rand(shape, generator=generator) < 0.5
        if not self.dtype.is_floating_point:
            return torch.randint(-9, 10, shape, generator=generator).to(self.dtype)
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        if self.special:
            odd = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0], dtype=torch.float64)
            chosen = torch.randint(0, 25, shape, generator=generator)
            values = torch.where(chosen < 5, odd[chosen.clamp(max=4)], values)
        return values.to(self.dtype)


@dataclass(frozen=True)
class RandomFunction:
    """A function and its inputs.

    Attributes:
        inputs: of it, in order: ``v0``, ``v1``...
        lines: assignments to ``v<n>``.
        results: names of what it returns.
    """

    inputs: tuple[Input, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def source(self) -> str:
        """Plain torch code."""
        arguments = ", ".join(f"v{place}" for place in range(len(self.inputs)))
        body = [*self.lines, f"return {', '.join(self.results)},"]
        return "\n".join([f"def function({arguments}):", *(f"    {line}" for line in body)])

    def __repr__(self) -> str:
        return "\n".join([*(f"# v{place} = {item}" for place, item in enumerate(self.inputs)), self.source])

    @cached_property
    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The function itself."""
        namespace = dict(_NAMESPACE)
        exec(self.source, namespace)
        return namespace["function"]  # type: ignore[return-value]

    def make_inputs(self) -> list[torch.Tensor]:
        """Fresh arguments."""
        return [item.make() for item in self.inputs]


# -- steps -------------------------------------------------------------------------------------------------------------
# Templates over x, y, z (values), d and e (dimensions of x), k (a small number), c (a bool value). Those that jump are
# drawn on exact values only.


def _templates(text: str) -> tuple[str, ...]:
    """Templates, separated by ``;;`` or by lines."""
    return tuple(item.strip() for line in text.strip().splitlines() for item in line.split(";;"))


_FLOAT_SMOOTH = _templates(
    """
    x.neg() ;; x.abs() ;; x.relu() ;; x.tanh() ;; x.sigmoid() ;; x.sin() ;; x.cos() ;; x.erf()
    F.gelu(x) ;; F.silu(x) ;; F.softplus(x) ;; x.clamp(-3, 3).exp() ;; (x.abs() + 0.5).log()
    x.abs().sqrt() ;; (x.abs() + 0.5).rsqrt() ;; x * x * 0.5 ;; x.clamp(-1, 1) ;; x.abs().log1p()
    F.leaky_relu(x, 0.1) ;; x * 1.5 + 0.25 ;; x / 3 ;; 1 - x ;; x.clamp(-2, 2).expm1()
    (x.abs() + 0.5).reciprocal() ;; F.elu(x) ;; x.clamp(-4, 4) ** 2 ;; x.atan() ;; F.hardtanh(x)
    F.gelu(x, approximate='tanh') ;; x.clamp(-2, 2).exp2() ;; F.logsigmoid(x) ;; F.hardswish(x)
    x.clamp(-2, 2).sinh()
    """
)
_FLOAT_JUMPING = _templates(
    """
    x.floor() ;; x.ceil() ;; x.round() ;; x.trunc() ;; x.sign() ;; x % 1.5 ;; x.isnan() ;; x.isfinite()
    torch.signbit(x)
    """
)
_INTEGER = _templates(
    """
    x.neg() ;; x.abs() ;; x * 3 ;; x + 1 ;; x // 3 ;; x % 3 ;; x & 7 ;; x.clamp(-4, 4) ;; x ^ 5 ;; ~x
    x << 1 ;; x >> 1 ;; x.sign() ;; -(x // -2)
    """
)
_BOOL = _templates(
    """
    ~x ;; x.logical_not() ;; x & True ;; x ^ True
    """
)
_FLOAT_PAIRS = _templates(
    """
    x + y ;; x - y ;; x * y ;; torch.maximum(x, y) ;; torch.minimum(x, y) ;; x / (y.abs() + 0.5)
    torch.atan2(y, x.abs() + 0.5) ;; torch.lerp(x, y, 0.25) ;; torch.addcmul(x, x, y, value=0.5)
    x + 2 * y ;; torch.copysign(x, y.abs() + 1) ;; torch.hypot(x, y)
    """
)
_INTEGER_PAIRS = _templates(
    """
    x + y ;; x - y ;; x * y ;; torch.maximum(x, y) ;; x & y ;; x | y ;; x ^ y ;; x // (y.abs() + 1)
    x % (y.abs() + 1)
    """
)
_BOOL_PAIRS = _templates(
    """
    x & y ;; x | y ;; x ^ y ;; torch.logical_and(x, y)
    """
)
_COMPARISONS = _templates(
    """
    x < y ;; x <= y ;; x == y ;; x != y ;; x > y ;; x >= y
    """
)
_CHOICES = _templates(
    """
    torch.where(c, x, y) ;; x.masked_fill(c, k) ;; torch.where(c, x, k)
    """
)
_VIEWS = _templates(
    """
    x.transpose(d, e) ;; x.unsqueeze(d) ;; x.squeeze(d) ;; x.flip(d) ;; x.flatten() ;; x.select(d, 0)
    x.narrow(d, 1, 1) ;; x[::2] ;; x[..., 1:] ;; x[..., :-1] ;; x.contiguous()
    x.unsqueeze(d).expand(*x.shape[:d], 3, *x.shape[d:]) ;; x.roll(k, d) ;; torch.tril(x)
    torch.triu(x, 1) ;; x.split(2, d)[0] ;; x.chunk(2, d)[-1] ;; x.unbind(d)[0] ;; x.movedim(d, e)
    x.repeat(*[2] * x.dim()) ;; x.diagonal(0, d, e) ;; x[..., None, :] ;; x.reshape(-1, x.shape[-1])
    x.T.reshape(-1)
    """
)
_JOINS = _templates(
    """
    torch.cat([x, y], d) ;; torch.stack([x, y], d) ;; torch.cat([x, x[:1], y], 0)
    torch.stack([x, x, y], -1)
    """
)
_PADS = _templates(
    """
    F.pad(x, (1, 2)) ;; F.pad(x, (0, 1, 1, 0)) ;; F.pad(x, (-1, 1)) ;; F.pad(x, (2, 0), value=1.0)
    """
)
_FOLDS = _templates(
    """
    x.sum(d) ;; x.sum(d, keepdim=True) ;; x.mean(d, keepdim=True) ;; x.mean(d) ;; x.sum() ;; x.mean()
    x.sum((d, e)) ;; x.var(d, keepdim=True) ;; x.logsumexp(d) ;; x.clamp(-1.5, 1.5).prod(d)
    x.norm(dim=d, keepdim=True) ;; x.std(d, correction=0) ;; x.softmax(d) ;; x.log_softmax(d)
    F.layer_norm(x, (x.shape[-1],)) ;; x * (x.square().mean(-1, keepdim=True) + 0.1).rsqrt()
    x - x.mean(d, keepdim=True) ;; x.cumsum(d) ;; x.clamp(-1.5, 1.5).cumprod(d) ;; x.logcumsumexp(d)
    """
)
_EXTREMES = _templates(
    """
    x.amax(d) ;; x.amin(d, keepdim=True) ;; x - x.amax(d, keepdim=True) ;; x.amax() ;; x.max(d).values
    x.cummax(d).values
    """
)
_POSITIONS = _templates(
    """
    x.argmax(d) ;; x.argmin(d, keepdim=True) ;; x.argmax() ;; x.max(d).indices ;; x.min(d).indices
    """
)
_INTEGER_FOLDS = _templates(
    """
    x.sum(d) ;; x.sum() ;; x.sum(d, keepdim=True) ;; x.amax(d) ;; x.cumsum(d) ;; x.amin(d, keepdim=True)
    x.prod(d)
    """
)
_BOOL_FOLDS = _templates(
    """
    x.any(d) ;; x.all(d) ;; x.any() ;; x.all(d, keepdim=True) ;; x.sum(d) ;; x.cumsum(d)
    """
)
# y is an integer value; it becomes positions by wrapping.
_LOOKUPS = _templates(
    """
    x[y % x.shape[0]] ;; x.index_select(d, (y % x.shape[d]).flatten()[:5])
    F.embedding(y % x.shape[0], x) ;; torch.gather(x, d, y % x.shape[d])
    x.take_along_dim(y % x.shape[d], d) ;; x[..., y % x.shape[-1]]
    torch.zeros_like(x).index_add(d, y.flatten()[:x.shape[d]] % x.shape[d], x)
    x.scatter_add(d, y % x.shape[d], x.expand_as(y))
    x.index_put((y % x.shape[0],), x[0], accumulate=True) ;; x.scatter(d, y % x.shape[d], k)
    """
)
_FLOAT_CONVERSIONS = tuple(f"x.to({dtype})" for dtype in FLOATS)

_SUMS = ("index_add", "scatter_add", "accumulate")


@dataclass
class _Value:
    """A value drawn so far."""

    name: str
    tensor: torch.Tensor
    exact: bool

    @property
    def kind(self) -> str:
        if self.tensor.dtype == torch.bool:
            return "b"
        return "f" if self.tensor.is_floating_point() else "i"


class _Drawing:
    """A function being drawn."""

    def __init__(self, draw: Callable[[Any], Any], inputs: Sequence[Input]) -> None:
        self._draw = draw
        self.lines: list[str] = []
        self.values = [_Value(f"v{place}", item.make(), True) for place, item in enumerate(inputs)]
        self._inputs = len(self.values)

    def step(self) -> None:
        """Add a line, if eager accepts it."""
        # Late values first: chains are longer and more is fused.
        place = self._draw(st.integers(0, len(self.values) - 1))
        value = self.values[-1 - place]
        template, exact = self._template(value)
        operands = {"x": value}
        for name in ("y", "c"):
            if name in _names(template):
                other = self._operand(name, template, value)
                if other is None:
                    return
                operands[name] = other
        rank = value.tensor.dim()
        numbers = {"k": str(self._draw(st.integers(-1, 2)))}
        numbers |= {name: str(self._draw(st.integers(0, max(rank - 1, 0)))) for name in ("d", "e")}
        text = _filled(template, {**{key: item.name for key, item in operands.items()}, **numbers})
        self._add(text, exact and all(item.exact for item in operands.values()))

    def _add(self, text: str, exact: bool) -> None:
        name = f"v{self._inputs + len(self.lines)}"
        space = {**_NAMESPACE, **{item.name: item.tensor for item in self.values}}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = eval(text, space)
        except (RuntimeError, IndexError, TypeError, ValueError):
            return
        if result.numel() > _LARGEST or result.dim() > 5:
            return
        self.lines.append(f"{name} = {text}")
        self.values.append(_Value(name, result, exact))

    def _template(self, value: _Value) -> tuple[str, bool]:
        """A template for a value, and whether its result is exact on exact operands."""
        tables: list[tuple[Sequence[str], bool]] = [(_VIEWS, True), (_CHOICES, True), (_JOINS, True), (_PADS, True)]
        rows = (_LOOKUPS, True)
        match value.kind:
            case "f":
                tables += [(_FLOAT_SMOOTH, False)] * 4 + [(_FLOAT_PAIRS, False)] * 4 + [(_FOLDS, False)] * 4
                tables += [rows, (_EXTREMES, False), (_FLOAT_CONVERSIONS, False)]
                if value.exact:
                    tables += [(_FLOAT_JUMPING, True), (_COMPARISONS, True), (_POSITIONS, True)]
            case "i":
                tables += [(_INTEGER, True), (_INTEGER_PAIRS, True), (_INTEGER_FOLDS, True), (_COMPARISONS, True)]
                tables += [rows, (_POSITIONS, True), (("x.to(torch.float32)", "x.to(torch.int32)", "x != 0"), True)]
            case _:
                tables += [(_BOOL, True), (_BOOL_PAIRS, True), (_BOOL_FOLDS, True)]
                tables += [(("x.to(torch.float32)", "x.to(torch.int64)"), True)]
        table, exact = self._draw(st.sampled_from(tables))
        template = self._draw(st.sampled_from(table))
        return template, exact and not (value.kind == "f" and any(word in template for word in _SUMS))

    def _operand(self, name: str, template: str, value: _Value) -> _Value | None:
        """Another value that fits: a condition, positions, or something of the first one's kind."""
        wanted = {"c": "b", "y": "i" if template in _LOOKUPS else value.kind}[name]
        fitting = [item for item in self.values if item.kind == wanted]
        if template in _LOOKUPS:
            # A position without dimensions becomes a Python number, and so a guard.
            fitting = [item for item in fitting if item.tensor.dim() > 0]
        if template in _COMPARISONS:
            fitting = [item for item in fitting if item.exact]
        return self._draw(st.sampled_from(fitting)) if fitting else None


def _names(template: str) -> set[str]:
    """Single letters that stand alone."""
    return {name for name in ("x", "y", "c") if _filled(template, {name: "@"}) != template}


def _filled(template: str, names: dict[str, str]) -> str:
    """A template with its single letters replaced."""
    out, word = [], ""
    for letter in f"{template}\0":
        if letter.isalnum() or letter == "_":
            word += letter
            continue
        is_attribute = bool(out) and out[-1] == "."
        out.append(word if is_attribute else names.get(word, word))
        out.append(letter)
        word = ""
    return "".join(out).rstrip("\0")


@st.composite
def random_functions(draw: Callable[[Any], Any], steps: int = 12, zero_sizes: bool = True) -> RandomFunction:
    """Functions of at most ``steps`` lines on one to four inputs.

    Args:
        zero_sizes: whether a dimension may be empty.
    """
    sizes = st.integers(0, 40).map(lambda number: 0 if number == 13 and zero_sizes else _SIZES[number % len(_SIZES)])
    base = tuple(draw(st.lists(sizes, max_size=3)))
    while math.prod(base) > _LARGEST // 4:
        base = base[1:]
    inputs = [draw(_inputs(base)) for _ in range(draw(st.integers(1, 4)))]
    drawing = _Drawing(draw, inputs)
    for _ in range(draw(st.integers(3, steps))):
        drawing.step()
    made = drawing.values[len(inputs) :]
    if not made:
        drawing._add("v0 * 1", False)
        made = drawing.values[len(inputs) :]
    kept = [made[-1], *(item for item in made[:-1] if draw(st.integers(0, 4)) == 0)]
    return RandomFunction(tuple(inputs), tuple(drawing.lines), tuple(item.name for item in kept))


@st.composite
def _inputs(draw: Callable[[Any], Any], base: tuple[int, ...]) -> Input:
    shape = tuple(1 if draw(st.integers(0, 5)) == 0 else size for size in base)
    shape = shape[draw(st.integers(0, len(shape))) :] if draw(st.booleans()) else shape
    dtype = draw(st.sampled_from([torch.float32] * 5 + [*FLOATS, torch.int64, *INTEGERS, torch.bool]))
    layout = draw(st.sampled_from(["contiguous"] * 3 + ["transposed", "stepped", "expanded", "offset"]))
    special = dtype == torch.float32 and draw(st.integers(0, 7)) == 0
    return Input(shape, dtype, layout, special, draw(st.integers(0, 1000)))
