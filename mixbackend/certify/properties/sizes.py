"""Other sizes: compiled code of a dynamic region at sizes that it has not seen, and regions without elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import sympy
import torch

from mixbackend.certify.cases import ZERO_SIZE, Case, cases_of
from mixbackend.certify.samples import Sample
from mixbackend.certify.tested import NotAsked, Problem, Tested, eager_refuses, named, one_line
from mixbackend.certify.variants import allowed, at_sizes, copies, positions, symbols_of
from mixbackend.contracts import Condition, SymbolicSize, TensorMeta

Sizes = Mapping[sympy.Symbol, int]


def other_sizes(tested: Tested) -> Problem | None:
    """A dynamic region serves every size that its symbols allow, in any order."""
    symbols = symbols_of(tested.region)
    if not symbols:
        raise NotAsked("its sizes are known")
    hints = {symbol: int(size.hint or 0) for symbol, size in symbols.items()}
    bounded = positions(tested.region, tested.case.inputs)
    asked = 0
    for sizes in (*_sizes(hints), hints):
        smaller = any(sizes[symbol] < hint for symbol, hint in hints.items())
        if (bounded and smaller) or not allowed(tested.region, sizes) or not _serves(tested, sizes):
            continue
        inputs = at_sizes(tested.region, tested.case.inputs, sizes)
        if inputs is None or eager_refuses(tested.region, inputs):
            continue
        asked += 1
        where = ", ".join(f"{symbol} = {value}" for symbol, value in sizes.items())
        if problem := named("other sizes", tested.judged(inputs), f"at {where}"):
            return problem
    if asked < 2:  # the sizes of the sample itself do not count
        raise NotAsked("no other sizes are possible")
    return None


def zero_size(tested: Tested) -> Problem | None:
    """The same ops on tensors without elements, where eager takes them and the backend claims them."""
    symbols = symbols_of(tested.region)
    if not symbols:
        raise NotAsked("asked of samples with symbolic sizes")
    if tested.region.written or tested.region.matches:
        raise NotAsked("asked of what writes nothing")
    if any(view.op_class == "attention" for view in tested.region.views):
        raise NotAsked("torch's own kernels for attention divide by sizes, and die")
    for symbol in symbols:
        case = _empty(tested, symbol)
        if case is None:
            continue
        try:
            compiled = tested.backend.compile(case.region)
            problem = Tested(case, tested.backend, compiled).judged(copies(case.inputs))
        except NotAsked:
            continue
        except Exception as error:
            problem = Problem("zero-size", f"compiling raises {one_line(error)}")
        shapes = ", ".join(str(list(value.shape)) for value in case.inputs if isinstance(value, torch.Tensor))
        return named("zero-size", problem, f"with inputs of {shapes}")
    raise NotAsked("eager or the backend refuses tensors without elements")


def _sizes(hints: Sizes) -> Iterator[Sizes]:
    """All larger by different steps, larger still, then smaller."""
    yield {symbol: hint + 1 + place for place, (symbol, hint) in enumerate(hints.items())}
    yield {symbol: 4 * hint + 13 + 4 * place for place, (symbol, hint) in enumerate(hints.items())}
    yield {symbol: 2 * hint for symbol, hint in hints.items()}
    yield {symbol: max(2, hint - 1) for symbol, hint in hints.items()}


def _serves(tested: Tested, sizes: Sizes) -> bool:
    """Whether the code says that it takes these sizes: elsewhere eager runs the region."""
    return all(_holds(condition, sizes) for condition in tested.compiled.preconditions)


def _holds(condition: Condition, sizes: Sizes) -> bool:
    if not isinstance(condition.size, SymbolicSize):
        return True
    value = condition.size.expression.xreplace({symbol: sympy.Integer(number) for symbol, number in sizes.items()})
    return not value.is_number or condition.holds(int(value))


def _empty(tested: Tested, symbol: sympy.Symbol) -> Case | None:
    """The case where one symbol is 0; ``None`` where there is no such case that the backend claims."""
    region = tested.region
    sizes = {name: int(size.hint or 0) for name, size in symbols_of(region).items()} | {symbol: 0}
    inputs = at_sizes(region, tested.case.inputs, sizes)
    if inputs is None or not all(isinstance(item.meta, TensorMeta) for item in region.inputs):
        return None
    if eager_refuses(region, inputs):
        return None
    sample = Sample(tested.case.sample, region.graph_module.forward, tuple(inputs), phase=region.phase)
    try:
        cases = cases_of(sample, tested.backend)
    except Exception:  # torch does not trace it: there is no such region
        return None
    wanted = [case for case in cases if case.claim.op == tested.case.claim.op and ZERO_SIZE in case.features]
    return wanted[0] if len(wanted) == 1 and wanted[0].refusal is None else None
