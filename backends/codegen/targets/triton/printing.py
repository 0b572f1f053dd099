"""A program as text: every kernel under its plan, and what launches have to know of it.

Place: used by ``target``. Steps for every call: ``specialised``, ``reach``, ``plan``, ``printer``. Equal texts are
compiled once. Calls that may run at once become one text (``together``).
Where sizes are symbolic, indices have 32 bits, and there is a second text with 64 beside each: a launch with sizes that
reach further takes that one, compiled when first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import sympy

from mixbackend.backends.codegen.targets.triton.indices import index_text
from mixbackend.backends.codegen.targets.triton.limits import Settings
from mixbackend.backends.codegen.targets.triton.text import Text

if TYPE_CHECKING:
    from mixbackend.backends.codegen.ir.kernel import AnyKernel, Kernel, TemplateKernel
    from mixbackend.backends.codegen.ir.program import KernelCall, Program
    from mixbackend.backends.codegen.targets.triton.plan import Plan


@dataclass(frozen=True)
class Printed:
    """A program as text.

    Attributes:
        texts: distinct kernels.
        wide: for each of them the kernel with indices of 64 bits; itself where there is only one.
        places: for every launch the place of its kernel among them.
        counts: for every launch how many values it takes: its number of blocks, and its arguments.
        values: Python text of these values, over ``p``, the parameters of a launch.
        reach: Python text of what indices reach at most, as far as the parameters decide that.
    """

    texts: tuple[Text, ...]
    wide: tuple[Text, ...]
    places: tuple[int, ...]
    counts: tuple[int, ...]
    values: str
    reach: str


@dataclass(frozen=True)
class PrintedKernel:
    """A specialised kernel under a plan, or a template.

    Attributes:
        blocks: their number, over the kernel's parameters.
        bounds: see ``reach``; those that the parameters decide.
    """

    kernel: AnyKernel
    text: Text
    wide: Text
    blocks: sympy.Expr
    bounds: tuple[sympy.Expr, ...]


Choose = Callable[[PrintedKernel, Callable[[], Sequence[PrintedKernel]]], PrintedKernel]
"""Takes a kernel under the model's plan, and what gives it under several, the model's first."""


def print_program(program: Program, settings: Settings, choose: Choose | None = None) -> Printed:
    """All kernels of a program as text.

    Args:
        choose: among plans; the model's is taken unless given.
    """
    texts: dict[tuple[Text, Text], int] = {}
    places, counts, values, reach = [], [], [], ["0"]
    start = 0
    for calls in program.launches:
        made = _print_call(calls[0], settings, choose) if len(calls) == 1 else _print_together(calls, settings)
        places.append(texts.setdefault((made.text, made.wide), len(texts)))
        symbols = calls[0].kernel.parameters if len(calls) == 1 else ()
        names = {symbol: f"p[{start + place}]" for place, symbol in enumerate(symbols)}
        mine = [index_text(made.blocks, names), *(names[symbol] for symbol in made.kernel.parameters)]
        counts.append(len(mine))
        values += mine
        reach += [index_text(bound, names) for bound in made.bounds]
        start += sum(len(call.parameters) for call in calls)
    narrow, wide = (tuple(pair[place] for pair in texts) for place in range(2))
    listed = "".join(f"{item}, " for item in values)
    furthest = f"max({', '.join(dict.fromkeys(reach))})" if len(reach) > 1 else "0"
    return Printed(narrow, wide, tuple(places), tuple(counts), f"lambda p: ({listed})", f"lambda p: {furthest}")


def values_of(printed: Printed) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """The function behind ``Printed.values``."""
    return eval(printed.values, {})  # type: ignore[no-any-return] # our own text


def reach_of_launch(printed: Printed) -> Callable[[Sequence[int]], int]:
    """The function behind ``Printed.reach``."""
    return eval(printed.reach, {})  # type: ignore[no-any-return] # our own text


def _print_call(call: KernelCall, settings: Settings, choose: Choose | None) -> PrintedKernel:
    from mixbackend.backends.codegen.ir.kernel import TemplateKernel

    given = tuple(int(value) if value.is_Integer else None for value in call.parameters)
    kernel = call.kernel
    if isinstance(kernel, TemplateKernel):
        return _printed_template(kernel, given)
    (first,) = _printed(kernel, given, settings, False)
    return first if choose is None else choose(first, lambda: _printed(kernel, given, settings, True))


@lru_cache(maxsize=256)
def _printed_template(kernel: TemplateKernel, given: tuple[int | None, ...]) -> PrintedKernel:
    from mixbackend.backends.codegen.targets.triton.templates import print_template

    made = print_template(kernel, given)
    return PrintedKernel(made.kernel, made.text, made.text, made.blocks, ())


def _print_together(calls: Sequence[KernelCall], settings: Settings) -> PrintedKernel:
    return _printed_together(tuple((call.kernel, tuple(map(int, call.parameters))) for call in calls), settings)  # type: ignore[misc] # see above


@lru_cache(maxsize=256)
def _printed_together(kernels: tuple[tuple[Kernel, tuple[int, ...]], ...], settings: Settings) -> PrintedKernel:
    from mixbackend.backends.codegen.targets.triton.plan import make_plans_together
    from mixbackend.backends.codegen.targets.triton.reach import needs_wide, reach_of
    from mixbackend.backends.codegen.targets.triton.specialised import specialised
    from mixbackend.backends.codegen.targets.triton.together import print_together

    special = [specialised(kernel, given) for kernel, given in kernels]
    plans = make_plans_together(special, settings, [needs_wide(reach_of(kernel)) for kernel in special])
    text, blocks = print_together(list(zip(special, plans, strict=True)))
    return PrintedKernel(special[0], text, text, blocks, ())


@lru_cache(maxsize=4096)
def _printed(
    kernel: Kernel, given: tuple[int | None, ...], settings: Settings, several: bool
) -> tuple[PrintedKernel, ...]:
    # Only here: what is loaded from artifacts is not printed.
    from mixbackend.backends.codegen.targets.triton.plan import candidates, make_plan
    from mixbackend.backends.codegen.targets.triton.reach import needs_wide, reach_of
    from mixbackend.backends.codegen.targets.triton.specialised import specialised

    special = specialised(kernel, given)
    bounds = reach_of(special)
    wide = needs_wide(bounds)
    open_bounds = () if wide or bounds is None else tuple(item for item in bounds if not item.is_Integer)
    plans = candidates(special, settings, wide) if several else [make_plan(special, settings, wide)]
    return tuple(_under(special, plan, open_bounds) for plan in plans)


def _under(kernel: Kernel, plan: Plan, bounds: tuple[sympy.Expr, ...]) -> PrintedKernel:
    from mixbackend.backends.codegen.targets.triton.printer import block_count, print_kernel

    text = print_kernel(kernel, plan)
    wide = print_kernel(kernel, replace(plan, wide=True)) if bounds else text
    return PrintedKernel(kernel, text, wide, block_count(plan), bounds)
