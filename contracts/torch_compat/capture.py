"""What Dynamo and AOTAutograd hand to a backend.

Place: a part of the door; see ``contracts.torch_compat``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from mixbackend.contracts.torch_compat.autograd_cache import StoredResults
from mixbackend.contracts.torch_compat.graph_modules import written_when_run


def aot_compile(
    graph_module: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    forward: Any,
    backward: Any,
    inference: Any,
    partition: Any,
    stored: StoredResults | None = None,
) -> Any:
    """Run AOTAutograd with minimal decompositions on a Dynamo graph; returns the callable for Dynamo.

    Each compiler is called as ``compiler(graph_module, fake_inputs)`` and returns a callable on flat arguments;
    ``partition`` splits a joint graph into forward and backward. With ``stored`` nothing is called where the cache has
    what they returned for an equal graph.
    """
    from torch._dynamo.backends.common import aot_autograd

    if stored is not None:
        forward, backward, inference = map(stored.compiler, (forward, backward, inference))
    compiled = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        # Up to torch 2.11 fake tensors state a contiguous result, where eager keeps the order of dimensions.
        decompositions={torch.ops.aten.zero.default: torch.zeros_like},
        keep_inference_input_mutations=True,
    )
    with written_when_run(), contextlib.nullcontext() if stored is None else stored.sought():
        return compiled(graph_module, example_inputs)


def boxed(function: Any) -> Any:
    """Mark a function as taking one list of arguments that it empties."""
    function._boxed_call = True
    return function


_PART = "SubclassGetAttrAOTInput"
"""How AOTAutograd describes a part of a tensor subclass."""


def input_position(node: torch.fx.Node) -> int | None:
    """Position among Dynamo's inputs of the value behind a placeholder of an AOTAutograd graph, if it is one or a part
    of one: tensor subclasses are taken apart."""
    description = node.meta.get("desc")
    while type(description).__name__ == _PART:
        description = description.base  # type: ignore[union-attr]
    position = getattr(description, "idx", None)
    return position if type(description).__name__ == "PlainAOTInput" else None


def input_part(node: torch.fx.Node) -> str:
    """Which part of a tensor subclass a placeholder is: ``.qdata``; empty if it is a whole input of Dynamo's."""
    description, path = node.meta.get("desc"), ""
    while type(description).__name__ == _PART:
        path = f".{description.attr}{path}"  # type: ignore[union-attr]
        description = description.base  # type: ignore[union-attr]
    return path


def tensor_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor is made of: itself, or those of a subclass, however deep."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from tensor_parts(getattr(tensor, name))


RECOMPUTATION_POLICY = "recompute"
"""Entry of a joint graph's ``node.meta`` in which torch's split, and a user's own checkpointing, look up what is to be
done with a value."""


def is_tangent(node: torch.fx.Node) -> bool:
    """Whether a placeholder of a backward graph is an incoming gradient."""
    return "Tangent" in type(node.meta.get("desc")).__name__ or node.name.startswith("tangents")


def saved_positions(output: torch.fx.Node) -> frozenset[int]:
    """Positions of what a forward graph returns for its backward alone; its caller never sees these."""
    descriptions = output.meta.get("desc") or ()
    names = (type(description).__name__ for description in descriptions)
    return frozenset(place for place, name in enumerate(names) if name.startswith("SavedForBackwards"))


def mark_saved(output: torch.fx.Node, places: frozenset[int], count: int) -> None:
    """Say of an output node with so many results which of them are kept for the backward, as AOTAutograd does."""
    from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput

    output.meta["desc"] = [SavedForBackwardsAOTOutput(place) if place in places else None for place in range(count)]


def source_name(node: torch.fx.Node) -> str:
    """How Dynamo reaches the value behind one of its placeholders, ``L['self']._parameters['weight']``."""
    source = getattr(node, "_dynamo_source", None)
    if source is None:
        return ""
    name = source.name
    return name() if callable(name) else str(name)


def is_static_input(node: torch.fx.Node) -> bool:
    """Whether Dynamo says that a placeholder is a parameter, a buffer or another tensor kept by a module."""
    return bool((node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type"))


def partition_with_min_cut(joint: Any, inputs: Any, **keywords: Any) -> Any:
    """Split a joint graph so that little is saved for the backward, recomputing what is cheap."""
    from functorch.compile import min_cut_rematerialization_partition

    return min_cut_rematerialization_partition(joint, inputs, **keywords)


def backward_compiled_at_once() -> Any:
    """Context in which the backward graph is compiled together with the forward graph."""
    import torch._functorch.config as functorch_config

    return functorch_config.patch(force_non_lazy_backward_lowering=True)
