"""Scalar expressions: what one point of a loop computes.

Place: the value side of stages (``ir.stages``) and kernels (``ir.kernel``).
Invariants: immutable, compared by value, with their hash computed once; every node has one compute type. Values of
16-bit floating types are computed in float32: loading widens, storing rounds, and the ops ``round_float16`` and
``round_bfloat16`` round in between where the program asks for a conversion. Integer arithmetic wraps in its own type.
Non-goals: memory layout; ``Load`` names an element of a tensor by its index, ``Read`` one of a buffer by its offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard, Union

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import Value, walk
from mixbackend.backends.codegen.ir.philox import uniform
from mixbackend.backends.codegen.ir.printed import Printed

_HALF = (torch.float16, torch.bfloat16)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Type in which values stored as ``dtype`` are computed."""
    return torch.float32 if dtype in _HALF else dtype


def _infix(op: str) -> Callable[[Any, Term], Expr]:
    return lambda own, other: call(op, own, other)


def _prefix(op: str) -> Callable[[Any], Expr]:
    return lambda own: call(op, own)


def _infix_reflected(op: str) -> Callable[[Any, Term], Expr]:
    return lambda own, other: call(op, other, own)


@dataclass(frozen=True)
class _Node(Printed, Value):
    dtype: torch.dtype
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        fields = tuple(value for name, value in vars(self).items() if name != "_hash")
        object.__setattr__(self, "_hash", hash((type(self).__name__, fields)))

    def __hash__(self) -> int:
        return self._hash

    # Operators are those of SCALAR_OPS, between expressions and with plain numbers on either side; "==" compares nodes.
    __add__, __radd__ = _infix("add"), _infix_reflected("add")
    __sub__, __rsub__ = _infix("sub"), _infix_reflected("sub")
    __mul__, __rmul__ = _infix("mul"), _infix_reflected("mul")
    __truediv__, __rtruediv__ = _infix("div"), _infix_reflected("div")
    __and__, __or__ = _infix("and"), _infix("or")
    __lt__, __le__, __gt__, __ge__ = _infix("lt"), _infix("le"), _infix("gt"), _infix("ge")
    __neg__ = _prefix("neg")


@dataclass(frozen=True)
class Constant(_Node):
    """A number known while compiling; floating constants may be infinite or NaN (compared by their text)."""

    value: Union[int, float, bool]

    __hash__ = _Node.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and (self.dtype, repr(self.value)) == (other.dtype, repr(other.value))


@dataclass(frozen=True)
class IndexValue(_Node):
    """The value of an index expression, converted to ``dtype``."""

    expression: sympy.Expr

    __hash__ = _Node.__hash__


Bindings = tuple[tuple[sympy.Symbol, "Expr"], ...]
"""Symbols of an index that stand for run-time integers (an embedding's row), with what computes them. A bound value is
always inside the range of what it indexes: lowering wraps negative indices and rules say what else they promise."""


@dataclass(frozen=True)
class Load(_Node):
    """An element of a tensor (stage level).

    Attributes:
        tensor: name of an input or of a stage's target.
        index: one expression per dimension.
        bindings: see ``Bindings``.
        mask: bool expression; where it is false nothing is read and the value is ``other``. The index may be out of
            range there.
        other: value where the mask is false.
    """

    tensor: str
    index: tuple[sympy.Expr, ...]
    bindings: Bindings = ()
    mask: Expr | None = None
    other: Union[int, float, bool] = 0

    __hash__ = _Node.__hash__


@dataclass(frozen=True)
class Read(_Node):
    """An element of a buffer (kernel level): ``Load`` with its layout known.

    Attributes:
        buffer: name of a kernel's buffer or scratch.
        offset: in elements.
        bindings, mask, other: as in ``Load``.
    """

    buffer: str
    offset: sympy.Expr
    bindings: Bindings = ()
    mask: Expr | None = None
    other: Union[int, float, bool] = 0

    __hash__ = _Node.__hash__


@dataclass(frozen=True)
class Local(_Node):
    """A value computed earlier in the same nest: a ``Let``, or a finished accumulator (kernel level)."""

    name: str

    __hash__ = _Node.__hash__


@dataclass(frozen=True)
class Apply(_Node):
    """A scalar operator of ``SCALAR_OPS`` on expressions."""

    op: str
    arguments: tuple[Expr, ...]

    __hash__ = _Node.__hash__


Expr = Union[Constant, IndexValue, Load, Read, Local, Apply]
Term = Union[Expr, int, float, bool]


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One scalar operator.

    Attributes:
        arity: number of arguments.
        meaning: the same function on torch tensors of the compute type; the definition that targets are held against.
        result: ``same`` as the arguments, ``bool``, or ``given`` by the node (``to_dtype``).
        kinds: compute types it takes: ``f`` floating, ``i`` integer, ``b`` bool.
        cost: rough cycles per vector, for inlining decisions; a plain add is 1.
    """

    arity: int
    meaning: Callable[..., torch.Tensor]
    result: str = "same"
    kinds: str = "f"
    cost: float = 1.0


def _where(condition: torch.Tensor, yes: torch.Tensor, no: torch.Tensor) -> torch.Tensor:
    return torch.where(condition, yes, no)


def _rounded(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda value: value.to(dtype).to(value.dtype)


SCALAR_OPS: Mapping[str, ScalarOp] = {
    # arithmetic
    "add": ScalarOp(2, torch.add, kinds="fi"),
    "sub": ScalarOp(2, torch.sub, kinds="fi"),
    "mul": ScalarOp(2, torch.mul, kinds="fi"),
    "div": ScalarOp(2, torch.div, cost=4.0),
    "floor_div": ScalarOp(2, torch.floor_divide, kinds="fi", cost=10.0),
    "trunc_div": ScalarOp(2, lambda a, b: torch.div(a, b, rounding_mode="trunc"), kinds="i", cost=10.0),
    "remainder": ScalarOp(2, torch.remainder, kinds="fi", cost=10.0),
    "fmod": ScalarOp(2, torch.fmod, kinds="fi", cost=10.0),
    "neg": ScalarOp(1, torch.neg, kinds="fi"),
    "abs": ScalarOp(1, torch.abs, kinds="fi"),
    "sign": ScalarOp(1, torch.sign, kinds="fi", cost=2.0),
    "minimum": ScalarOp(2, torch.minimum, kinds="fib"),
    "maximum": ScalarOp(2, torch.maximum, kinds="fib"),
    "reciprocal": ScalarOp(1, torch.reciprocal, cost=4.0),
    "sqrt": ScalarOp(1, torch.sqrt, cost=5.0),
    "rsqrt": ScalarOp(1, torch.rsqrt, cost=8.0),
    "copysign": ScalarOp(2, torch.copysign),
    # transcendental
    "exp": ScalarOp(1, torch.exp, cost=12.0),
    "exp2": ScalarOp(1, torch.exp2, cost=12.0),
    "expm1": ScalarOp(1, torch.expm1, cost=18.0),
    "log": ScalarOp(1, torch.log, cost=15.0),
    "log2": ScalarOp(1, torch.log2, cost=15.0),
    "log10": ScalarOp(1, torch.log10, cost=15.0),
    "log1p": ScalarOp(1, torch.log1p, cost=20.0),
    "sin": ScalarOp(1, torch.sin, cost=20.0),
    "cos": ScalarOp(1, torch.cos, cost=20.0),
    "tan": ScalarOp(1, torch.tan, cost=30.0),
    "asin": ScalarOp(1, torch.asin, cost=25.0),
    "acos": ScalarOp(1, torch.acos, cost=25.0),
    "atan": ScalarOp(1, torch.atan, cost=25.0),
    "atan2": ScalarOp(2, torch.atan2, cost=30.0),
    "sinh": ScalarOp(1, torch.sinh, cost=30.0),
    "cosh": ScalarOp(1, torch.cosh, cost=30.0),
    "tanh": ScalarOp(1, torch.tanh, cost=18.0),
    "asinh": ScalarOp(1, torch.asinh, cost=40.0),
    "acosh": ScalarOp(1, torch.acosh, cost=40.0),
    "atanh": ScalarOp(1, torch.atanh, cost=40.0),
    "erf": ScalarOp(1, torch.erf, cost=20.0),
    "erfc": ScalarOp(1, torch.erfc, cost=30.0),
    "sigmoid": ScalarOp(1, torch.sigmoid, cost=16.0),
    # for results of 16 bits: targets may be off by 2**-15 of the result, and by what is below the least normal number
    "rough_sigmoid": ScalarOp(1, torch.sigmoid, cost=16.0),
    "rough_normal": ScalarOp(1, torch.special.ndtr, cost=22.0),
    "pow": ScalarOp(2, torch.pow, kinds="fi", cost=40.0),
    # rounding
    "floor": ScalarOp(1, torch.floor),
    "ceil": ScalarOp(1, torch.ceil),
    "trunc": ScalarOp(1, torch.trunc),
    "round": ScalarOp(1, torch.round),
    "round_float16": ScalarOp(1, _rounded(torch.float16), cost=2.0),
    "round_bfloat16": ScalarOp(1, _rounded(torch.bfloat16), cost=2.0),
    # comparison and logic; on bool the bitwise ops are the logical ones
    "eq": ScalarOp(2, torch.eq, "bool", "fib"),
    "ne": ScalarOp(2, torch.ne, "bool", "fib"),
    "lt": ScalarOp(2, torch.lt, "bool", "fib"),
    "le": ScalarOp(2, torch.le, "bool", "fib"),
    "gt": ScalarOp(2, torch.gt, "bool", "fib"),
    "ge": ScalarOp(2, torch.ge, "bool", "fib"),
    "isnan": ScalarOp(1, torch.isnan, "bool"),
    "and": ScalarOp(2, torch.bitwise_and, kinds="ib"),
    "or": ScalarOp(2, torch.bitwise_or, kinds="ib"),
    "xor": ScalarOp(2, torch.bitwise_xor, kinds="ib"),
    "not": ScalarOp(1, torch.bitwise_not, kinds="ib"),
    "shift_left": ScalarOp(2, torch.bitwise_left_shift, kinds="i"),
    "shift_right": ScalarOp(2, torch.bitwise_right_shift, kinds="i"),
    # the first argument; where the second, a value from outside, had to be replaced by it, the program tells
    "corrected": ScalarOp(2, lambda value, given: value, kinds="i", cost=0.0),
    # seed, offset, position, threads and elements at once: the number that torch draws there (see ``philox``)
    "uniform": ScalarOp(5, uniform, "given", "i", cost=60.0),
    # selection and conversion; the condition of "where" is bool, its other arguments have the result's type
    "where": ScalarOp(3, _where, kinds="fib"),
    "to_dtype": ScalarOp(1, lambda value: value, "given", "fib"),
}
"""Every scalar operator. ``to_dtype`` converts as torch does between compute types; ``uniform`` gives float32.
``corrected(value, given)`` is what is told of inputs for which eager raises: at each point that is computed the two are
equal, or the run ends with an ``InputRangeError``, before anything is written into an input."""


class OperandTypeError(TypeError):
    """An operator is not defined for the type of its operands: no target has code for it."""


def kind_of(dtype: torch.dtype) -> str:
    """``f``, ``i`` or ``b``, as in ``ScalarOp.kinds``."""
    if dtype == torch.bool:
        return "b"
    return "f" if dtype.is_floating_point else "i"


def apply(op: str, *arguments: Expr, dtype: torch.dtype | None = None) -> Expr:
    """A node for a scalar operator; the type follows from the arguments unless given.

    Raises:
        KeyError: no such operator.
        ValueError: wrong number of arguments.
        OperandTypeError: they are of a kind that the operator does not take.
    """
    definition = SCALAR_OPS[op]
    if len(arguments) != definition.arity:
        raise ValueError(f"{op} takes {definition.arity} arguments, got {len(arguments)}")
    if kind_of(arguments[-1].dtype) not in definition.kinds:
        raise OperandTypeError(f"{op} is not defined for {arguments[-1].dtype}")
    if dtype is None:
        dtype = torch.bool if definition.result == "bool" else arguments[-1].dtype
    return Apply(dtype, op, arguments)


def call(op: str, *terms: Term) -> Expr:
    """A scalar operator on expressions and numbers, at least one of them an expression."""
    dtype = next(term.dtype for term in reversed(terms) if not isinstance(term, (int, float)))
    return apply(op, *(lifted(term, dtype) for term in terms))


def lifted(term: Term, dtype: torch.dtype) -> Expr:
    """A plain number as a constant of a compute type; an expression as it is."""
    if not isinstance(term, (int, float)):
        return term
    return Constant(dtype, float(term) if dtype.is_floating_point else term)


def cast(value: Expr, dtype: torch.dtype) -> Expr:
    """Convert to a compute type, as torch converts."""
    return value if value.dtype == dtype else apply("to_dtype", value, dtype=dtype)


ROUNDING = {torch.float16: "round_float16", torch.bfloat16: "round_bfloat16"}
"""Operators that leave the digits which memory of a type keeps."""


def as_stored(value: Expr, dtype: torch.dtype) -> Expr:
    """A value with the digits that memory of its type would keep, for decisions that a digit more would change."""
    return apply(ROUNDING[dtype], value) if dtype in ROUNDING else value


def all_of(conditions: Iterable[Expr]) -> Expr | None:
    """Conjunction; ``None`` if nothing has to hold."""
    result: Expr | None = None
    for condition in conditions:
        result = condition if result is None else result & condition
    return result


def is_checked(*wholes: Any) -> bool:
    """Whether something in these nodes may be told to be out of range."""
    return any(isinstance(node, Apply) and node.op == "corrected" for node in walk(*wholes))


def cost_of(*wholes: Any) -> float:
    """Cycles per vector of all operators in these nodes, see ``ScalarOp.cost``."""
    return sum(SCALAR_OPS[node.op].cost for node in walk(*wholes) if isinstance(node, Apply))


def needed(bindings: Bindings, index: Iterable[sympy.Expr]) -> Bindings:
    """The bindings that an access keeps: of symbols in its index, and those that are checked.

    Where every position is the same element (a stride of 0, a single value), the index forgets the position; eager
    raises for one out of range all the same.
    """
    used = frozenset[sympy.Symbol]().union(*(part.free_symbols for part in index))
    return tuple((symbol, value) for symbol, value in bindings if symbol in used or is_checked(value))


def are_checked_in(bindings: Bindings, value: Expr) -> bool:
    """Whether a value makes every check of some bindings."""
    checked = {bound for _, bound in bindings if is_checked(bound)}
    return not checked or checked.issubset(walk(value))


def is_element(value: Expr) -> TypeGuard[Load]:
    """Whether a value is an element of a tensor, read in any case and at an index that no value decides."""
    return isinstance(value, Load) and value.mask is None and not value.bindings
