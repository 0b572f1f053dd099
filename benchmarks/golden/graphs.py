"""The 30 graphs of the golden record: models of the suite and programs written for one property each.

Place: read by ``worker``. Output: per graph a function or module, its calls, and what makes a loss of what it returns.
Invariants: the same at every call, from torch's random state; the order is part of the record (``__main__``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from mixbackend.benchmarks.golden import programs
from mixbackend.benchmarks.models.registry import find
from mixbackend.benchmarks.models.trees import tensors_in

Call = tuple[tuple[Any, ...], dict[str, Any]]
Made = tuple[Callable[..., Any], list[Call], Callable[[Any], torch.Tensor]]


@dataclass(frozen=True)
class Graph:
    """One graph of the record.

    Attributes:
        make: the function or module, its calls, the loss.
        train: whether a backward follows every call.
        dynamic: of ``torch.compile``.
        configuration: beside what every graph has.
    """

    make: Callable[[], Made]
    train: bool = False
    dynamic: bool | None = False
    configuration: Mapping[str, Any] = field(default_factory=dict)


def _mean(result: Any) -> torch.Tensor:
    means = [item.float().mean() for item in tensors_in(result) if item.is_floating_point() and item.requires_grad]
    return torch.stack(means).sum()


def _of_suite(name: str, train: bool) -> Made:
    entry = find(name)
    module, args, kwargs = entry.load(train)
    return module, [(args, kwargs)], entry.loss


def _own(program: Callable[[], tuple[Callable[..., Any], list[tuple[Any, ...]]]]) -> Made:
    function, calls = program()
    return function, [(args, {}) for args in calls], _mean


def _suite(name: str, train: bool = False, **settings: Any) -> Graph:
    return Graph(partial(_of_suite, name, train), train, **settings)


def _program(
    program: Callable[[], tuple[Callable[..., Any], list[tuple[Any, ...]]]], train: bool = False, **settings: Any
) -> Graph:
    return Graph(partial(_own, program), train, **settings)


_BORDERS = {
    "rules": [
        {"match": {"op": "aten.convolution"}, "require": "onnxruntime"},
        {"match": {"op": "aten.addmm"}, "require": "onednn"},
        {"match": {"op": "aten.relu"}, "require": "codegen"},
        {"match": {"op": "aten.tanh"}, "require": "inductor"},
        {"match": {"op": "aten.sigmoid"}, "require": "eager"},
    ]
}
"""Several backends in one small graph, with borders between them."""

_BORDERS_IN_TRAINING = {
    "rules": [
        {"match": {"op": "aten.gelu*"}, "require": "codegen"},
        {"match": {"op": "aten.native_layer_norm*"}, "require": "inductor"},
        {"match": {"op": "aten.tanh*"}, "require": "eager"},
    ]
}

GRAPHS: dict[str, Graph] = {
    "inference_resnet18": _suite("resnet18"),
    "inference_bert": _suite("DistilBertForMaskedLM"),
    "inference_vision_transformer": _suite("deit_tiny_patch16_224"),
    "inference_mobilenet": _suite("mobilenetv2_100"),
    "inference_equation_of_state": _suite("pyhpc_equation_of_state"),
    "inference_graph_network": _suite("basic_gnn_sage"),
    "inference_omniglot": _suite("maml_omniglot"),
    "inference_mixture_by_rules": _program(programs.borders, configuration=_BORDERS),
    "inference_views_returned": _program(programs.views_returned),
    "inference_random_numbers": _program(programs.random_numbers),
    "inference_bfloat16": _program(programs.perceptron_of_bfloat16),
    "inference_counter": _program(programs.counter),
    "inference_condition": _program(programs.condition),
    "inference_frozen_weights": _program(programs.perceptron, configuration={"weights": "frozen"}),
    "inference_live_weights": _program(programs.perceptron, configuration={"weights": "live"}),
    "inference_inputs_written": _program(programs.inputs_written),
    "training_recommender": _suite("nvidia_deeprecommender", train=True),
    "training_forces": _suite("lennard_jones", train=True),
    "training_gpt": _suite("nanogpt", train=True),
    "training_batch_norm": _program(programs.batch_norm, train=True),
    "training_checkpoint": _program(programs.checkpointed, train=True),
    "training_dropout": _program(programs.dropout, train=True),
    "training_attention": _program(programs.written_attention, train=True),
    "training_mixture_by_rules": _program(programs.perceptron, train=True, configuration=_BORDERS_IN_TRAINING),
    "symbolic_batch": _program(programs.perceptron_of_batches, dynamic=True),
    "symbolic_lengths": _program(programs.attention_of_lengths, dynamic=True),
    "symbolic_images": _program(programs.images_of_sizes, dynamic=True),
    "symbolic_sizes_of_sizes": _program(programs.sizes_of_sizes, dynamic=True),
    "symbolic_training": _program(programs.perceptron_of_batches, train=True, dynamic=True),
    "symbolic_when_it_changes": _program(programs.perceptron_of_batches, dynamic=None),
}
