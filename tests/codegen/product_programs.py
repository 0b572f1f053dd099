"""Programs with packed products, checked: the harness of the tests of products and of convolutions."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import settings
from region_arguments import arguments
from tiers import draws
from torch import Tensor

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.interpret.program import interpret_program
from mixbackend.backends.codegen.ir.check import check_program
from mixbackend.backends.codegen.ir.kernel import TemplateKernel
from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.prepared import PreparedProgram, prepare
from mixbackend.contracts import InputRole, Region, Supported, Unsupported
from mixbackend.contracts.numerics import find_deviation
from mixbackend.execute.verify import eager_result, reference_result
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_region

CONSTANT = PlaceholderRole(InputRole.CONSTANT)
BACKEND = CodegenBackend()


def drawn(by_day: int, by_night: int, new_by_night: int) -> settings:
    """How many examples a property has, by tier: always the same ones; and new ones with ``MIXBACKEND_NIGHTLY=1``."""
    nightly = os.environ.get("MIXBACKEND_NIGHTLY") == "1"
    many = new_by_night if nightly else draws(by_day, by_night)
    return settings(max_examples=many, derandomize=not nightly, deadline=None, database=None)


def values(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def weights(*sizes: tuple[int, ...]) -> list[Tensor]:
    return [values(*size, seed=place + 1) * 0.1 for place, size in enumerate(sizes)]


def traced(function: Callable[..., Any], inputs: Sequence[Tensor], constants: Sequence[int], **options: Any) -> Region:
    return trace_region(function, inputs, roles=dict.fromkeys(constants, CONSTANT), **options)


def parted(region: Region, program: Program) -> PreparedProgram:
    """A program taken apart where its region's constants are known."""
    parts = prepare(program, frozenset(item.name for item in region.inputs if item.role is InputRole.CONSTANT))
    assert parts is not None
    return parts


def check(function: Callable[..., Any], inputs: Sequence[Tensor], constants: Sequence[int]) -> tuple[Region, Program]:
    """The program of a function; its results unbound, bound and interpreted are held against eager's and float64."""
    region = traced(function, inputs, constants)
    assert [verdict for view in region.views if not isinstance(verdict := BACKEND.judge(view), Supported)] == []
    program = BACKEND.program(region)
    check_program(program)
    ordered = arguments(region, inputs)
    compiled = BACKEND.compile(region)
    assert compiled.bind is not None
    pairs = zip(region.inputs, ordered, strict=True)
    known = [value if item.role is InputRole.CONSTANT else None for item, value in pairs]
    runs = [compiled.run(list(ordered)), compiled.bind(known).run(list(ordered)), interpret_program(program, ordered)]
    for results in runs:
        hold_against_eager(region, ordered, results)
    return region, program


def names(program: Program) -> list[str]:
    """Of kernels: templates by name, the others as ``nest``."""
    return [call.kernel.name if isinstance(call.kernel, TemplateKernel) else "nest" for call in program.calls]


def hold_against_eager(region: Region, ordered: Sequence[Any], results: Sequence[Tensor]) -> None:
    eager = eager_result(region, ordered)
    exact = reference_result(region, ordered, eager)
    for place, (result, plain, reference) in enumerate(zip(results, eager, exact, strict=True)):
        assert find_deviation(place, result, plain, reference, BACKEND.traits().error_budget) is None
        assert result.stride() == plain.stride()


def refusal(function: Callable[..., Any], inputs: Sequence[Tensor], constants: Sequence[int]) -> str:
    views = traced(function, inputs, constants).views
    found = [verdict for view in views if isinstance(verdict := BACKEND.judge(view), Unsupported)]
    assert found, "nothing is refused"
    return f"{found[0].code}: {found[0].detail}"


class Steps(ABC):
    """Steps of a model; weights are made as they are needed.

    Attributes:
        sizes: of the input.
        scale: of weights.
    """

    sizes: tuple[int, ...]
    scale: float

    def weights(self) -> list[Tensor]:
        """In the order in which they are needed."""
        made: list[Tensor] = []

        def weight(*size: int) -> Tensor:
            made.append(values(*size, seed=len(made) + 1) * self.scale)
            return made[-1]

        self.run(values(*self.sizes), weight)
        return made

    def __call__(self, x: Tensor, *given: Tensor) -> Tensor:
        rest = iter(given)
        return self.run(x, lambda *size: next(rest))

    @abstractmethod
    def run(self, x: Tensor, weight: Callable[..., Tensor]) -> Tensor:
        """All steps; ``weight`` gives the next one of some sizes."""

    def region(self) -> tuple[Region, list[Any]]:
        """The region of all steps, and what it is called with."""
        inputs = [values(*self.sizes), *self.weights()]
        region = traced(self, inputs, range(1, len(inputs)))
        return region, arguments(region, inputs)


def hold_interpreted(region: Region, ordered: Sequence[Any]) -> None:
    """A program of products is sound, and means what eager computes."""
    program = BACKEND.program(region)
    check_program(program)
    assert "product" in names(program)
    hold_against_eager(region, ordered, interpret_program(program, ordered))


def hold_compiled(region: Region, ordered: Sequence[Any]) -> None:
    """What is compiled computes what eager does."""
    hold_against_eager(region, ordered, BACKEND.compile(region).run(list(ordered)))
