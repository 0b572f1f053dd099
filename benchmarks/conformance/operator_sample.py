"""One of torch's operator samples: its inputs, and what eager or a backend makes of them, gradients as well.

Place: under ``operator_check``. Input: an entry of torch's operator database and one of its samples. Output: tensors.
Invariants: a run gets copies of the inputs that lie in memory as the sample's do, from the same state of the random
generators; the order of results is that of the operator's outputs, then of the inputs that want gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from mixbackend.benchmarks.models.trees import map_tensors, tensors_in
from mixbackend.contracts.torch_compat import fresh_fake_mode

_WIDE = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}
_SEED = 1234


class Results(NamedTuple):
    """What a run gives.

    Attributes:
        outputs: of the operator.
        gradients: of the inputs that want some.
    """

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor]

    def tensors(self) -> list[torch.Tensor]:
        """All of them."""
        return [*self.outputs, *self.gradients]


@dataclass(frozen=True)
class OperatorSample:
    """An operator with arguments.

    Attributes:
        name: of the operator, with its variant.
        number: of the sample.
        operator: the function.
        arguments: its arguments: the first one, the others, those by name.
    """

    name: str
    number: int
    operator: Callable[..., Any]
    arguments: tuple[Any, tuple[Any, ...], dict[str, Any]]

    def __str__(self) -> str:
        shapes = ", ".join(str(list(item.shape)) for item in tensors_in(self.arguments))
        return f"{self.name} #{self.number} ({shapes})"

    def run(
        self,
        compiled: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
        *,
        wide: bool = False,
        seed: int = _SEED,
    ) -> Results:
        """Outputs and gradients.

        Args:
            compiled: what makes a compiled function of one; eager if there is none.
            wide: compute in float64.
            seed: of torch's generators.
        """

        def call(first: Any, others: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return self.operator(first, *others, **named)

        copies = map_tensors(lambda item: _copy(item, wide), self.arguments)
        function = call if compiled is None else compiled(call)
        torch.manual_seed(seed)
        results = list(_results(function(*copies)))
        gradients = _gradients(results, list(tensors_in(copies)))
        return Results([_dense(item.detach()) for item in results], [_dense(item) for item in gradients])

    def stated_strides(self) -> list[tuple[int, ...]]:
        """Strides of the outputs by torch's fake kernels; none where these cannot say."""
        copies = map_tensors(lambda item: _copy(item, False), self.arguments)
        try:
            with fresh_fake_mode() as fake:
                first, others, named = map_tensors(fake.from_tensor, copies)
                return _strides_of(self.operator(first, *others, **named))
        except Exception:  # whatever a fake kernel raises: it states nothing
            return []


def _strides_of(value: Any) -> list[tuple[int, ...]]:
    return [tuple(map(int, item.stride())) for item in _results(value)]


def _copy(tensor: torch.Tensor, wide: bool) -> torch.Tensor:
    """The same values in memory of their own; gaps, order and shared elements as before."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.layout == torch.strided and not plain.is_quantized:
        storage = plain.untyped_storage().clone()
        copy = torch.empty(0, dtype=plain.dtype)
        copy.set_(storage, plain.storage_offset(), plain.size(), plain.stride())
    else:
        copy = plain.clone()
    if wide and (copy.is_floating_point() or copy.is_complex()):
        copy = copy.to(_WIDE.get(copy.dtype, torch.float64))
    return copy.requires_grad_(tensor.requires_grad)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """What numbers are compared of: sparse layouts have no strides, and few operators."""
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def _results(value: Any) -> list[torch.Tensor]:
    """Tensors of a result, numbers as tensors."""
    if isinstance(value, (bool, int, float, complex)):
        return [torch.tensor(value)]
    if isinstance(value, (tuple, list)):
        return [item for part in value for item in _results(part)]
    return list(tensors_in(value))


def _gradients(results: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Of the inputs that want them; zeros where there is no way from a result to an input."""
    wanted = [item for item in inputs if item.requires_grad]
    sources = [item for item in results if item.requires_grad]
    if not wanted or not sources:
        return []
    found = torch.autograd.grad(sources, wanted, [_cotangent(item) for item in sources], allow_unused=True)
    pairs = zip(found, wanted, strict=True)
    return [torch.zeros_like(item).detach() if grad is None else grad.detach() for grad, item in pairs]


def _cotangent(result: torch.Tensor) -> torch.Tensor:
    """Different values everywhere, none of them zero for long, the same ones in every run."""
    values = torch.arange(result.numel(), dtype=torch.float64).reshape(result.shape)
    cotangent = torch.cos(values + 0.5).to(result.dtype)
    return cotangent if result.layout == torch.strided else cotangent.sparse_mask(result.detach())
