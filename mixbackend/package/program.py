"""The program of a package: what is called like the module that it was exported from.

Place: what ``mixbackend.load`` returns. Input: arguments as the module's ``forward`` takes them. Output: what that
returns; a ``Report``.
Invariants: methods share their weights; what one writes into a buffer, the others read. No gradients.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mixbackend.compile.executable import Executable
from mixbackend.contracts import PackageError, PackageInputError
from mixbackend.package.arguments import Arguments
from mixbackend.package.model import PackagedGraph
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Report


@dataclass(eq=False)
class Variant:
    """One graph of a method.

    Attributes:
        graph: what the package says of it.
        arguments: from a call's to the graph's.
        executable: what runs it.
        weights: of the graph, in its order.
    """

    graph: PackagedGraph
    arguments: Arguments
    executable: Executable
    weights: tuple[torch.Tensor, ...]

    def __call__(self, values: list[Any]) -> Any:
        """What the program returns for inputs that fit."""
        results = self.executable([*self.weights, *values])
        signature = self.graph.signature
        leaves = (item.value if item.place is None else results[item.place] for item in signature.outputs)
        return signature.results.whole(leaves)


class Method:
    """A method: one graph, or several, of which a call runs the first that its arguments fit.

    Args:
        name: of the method.
        variants: its graphs.
    """

    def __init__(self, name: str, variants: Sequence[Variant]) -> None:
        self.name = name
        self.variants = tuple(variants)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it.

        Raises:
            PackageInputError: the arguments fit none of its graphs; says why.
        """
        problems = []
        with torch.no_grad():
            for variant in self.variants:
                try:
                    values = variant.arguments.bound(args, kwargs)
                except PackageInputError as error:
                    problems.append(error)
                    continue
                return variant(values)
        if len(problems) == 1:
            raise problems[0]
        texts = (f"{item.graph.id}: {error.what}" for item, error in zip(self.variants, problems, strict=True))
        raise PackageInputError(
            f"the arguments fit none of {len(problems)} programs of {self.name}: {'; '.join(texts)}"
        )


class PackagedProgram:
    """See the module's docstring.

    Args:
        path: of the package.
        methods: by name.
        weights: by the package's names.
        environment: what they run in.
    """

    def __init__(
        self,
        path: Path,
        methods: Mapping[str, Method],
        weights: dict[str, torch.Tensor],
        environment: Environment,
    ) -> None:
        self.path = path
        self.methods = dict(methods)
        self._weights = weights
        self._environment = environment
        for variant in self._variants():
            weakref.finalize(self, variant.executable.release).atexit = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the one method, or that called ``forward``."""
        method = self.methods.get("forward") or (next(iter(self.methods.values())) if len(self.methods) == 1 else None)
        if method is None:
            raise PackageError(
                f"{self.path} has the methods {', '.join(self.methods)}", hint='call program.methods["NAME"](...)'
            )
        return method(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<program of {self.path}: {', '.join(self.methods)}>"

    def report(self) -> Report:
        """What runs where, and what happened: events of kind ``package`` say what is other than when it was made."""
        environment = self._environment
        records = tuple(record for variant in self._variants() for record in variant.executable.records())
        return Report(records, environment.events.events(), environment.config.preferences(), environment.skipped)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The weights that run, by name; not copied."""
        return dict(self._weights)

    def load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """Run other weights from the next call on; what was made of the old ones is made again then.

        Args:
            state: tensors of the same sizes and types, by name.
            strict: whether names that are missing or unknown are an error.

        Raises:
            PackageError: something does not fit; nothing was changed.
        """
        problems = [f"{name} is missing" for name in self._weights if strict and name not in state]
        problems += [f"{name} is no weight of the package" for name in state if strict and name not in self._weights]
        taken = {name: tensor for name, tensor in state.items() if name in self._weights}
        for name, tensor in taken.items():
            old = self._weights[name]
            if (tensor.shape, tensor.dtype) != (old.shape, old.dtype):
                problems.append(
                    f"{name} is {tuple(tensor.shape)} of {tensor.dtype}, needed {tuple(old.shape)} of {old.dtype}"
                )
        if problems:
            raise PackageError(f"these weights do not fit {self.path}: {'; '.join(problems)}")
        made = {id(self._weights[name]): _laid_as(tensor, self._weights[name]) for name, tensor in taken.items()}
        self._weights.update({name: made[id(self._weights[name])] for name in taken})
        for variant in self._variants():
            variant.weights = tuple(self._weights[name] for name in variant.graph.weights)

    def _variants(self) -> list[Variant]:
        return [variant for method in self.methods.values() for variant in method.variants]


def _laid_as(tensor: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Values on the device, and in the layout, of a weight; a copy, so that nothing else writes into it."""
    made = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=old.device)
    return made.copy_(tensor.detach())
