"""Results of a client held against eager: no farther from float64 than eager is, within what backends may be.

Place: shared by the tests of clients. A client is a function that is run three times: in eager, in eager with float64,
and compiled. It makes its model and its data itself, from the same seed, and returns tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from mixbackend.compile.mixture import Mixture
from mixbackend.contracts import ErrorBudget
from mixbackend.contracts.numerics import find_deviation
from mixbackend.reporting.events import ORDINARY

Wrap = Callable[[Any], Any]
Client = Callable[[Wrap, torch.dtype], Sequence[torch.Tensor]]

BUDGET = ErrorBudget(factor=4.0, floor=64.0)
"""What every backend that compiles states of itself."""


def as_it_is(model: Any) -> Any:
    """For eager: a model that is not compiled."""
    return model


def hold(client: Client, mixture: Mixture) -> None:
    """Run a client in eager, in float64 and compiled: the results agree, something was compiled, nothing repaired."""

    eager, exact = client(as_it_is, torch.float32), client(as_it_is, torch.float64)
    compiled = client(lambda model: torch.compile(model, backend=mixture), torch.float32)
    hold_results(compiled, eager, exact)
    hold_report(mixture)


def hold_results(results: Iterable[torch.Tensor], eager: Iterable[torch.Tensor], exact: Iterable[torch.Tensor]) -> None:
    """Every result is as near to float64 as eager is."""
    groups = [[item.detach().cpu() for item in items] for items in (results, eager, exact)]
    wrong = [find_deviation(place, *three, BUDGET) for place, three in enumerate(zip(*groups, strict=True))]
    assert groups[0], "the client returned nothing"
    wrong = [str(item) for item in wrong if item is not None]
    assert not wrong, "\n".join(wrong)


def hold_report(mixture: Mixture, besides: str | None = None) -> None:
    """Something was compiled, and no region had to be repaired or replaced.

    Args:
        besides: what an event may say.
    """
    report = mixture.report()
    assert report.to_dict()["graphs"], "nothing was compiled"
    found = [str(event) for event in report.events if event.kind not in ORDINARY]
    trouble = [text for text in found if besides is None or besides not in text]
    assert not trouble, "\n".join(trouble)


def parameters_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """Copies of all parameters and buffers, in order."""
    return [item.detach().clone() for item in (*model.parameters(), *model.buffers())]


def seeded(make: Callable[[], torch.nn.Module], dtype: torch.dtype) -> torch.nn.Module:
    """A model with the same weights each time; those of float64 are the float32 ones."""
    torch.manual_seed(0)
    return make().to(dtype)


def data(dtype: torch.dtype, *shape: int, seed: int = 1) -> torch.Tensor:
    """The same values each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
