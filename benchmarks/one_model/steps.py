"""What the suite runs and compares: one inference, or one training step, several times in a row.

Place: between the model suite and the worker. Input: a loaded entry. Output: nested results for ``accuracy.judge``.
Invariants: every run starts from the same seed on a deep copy of the module, so that models which change themselves
can be compared; results are copies, never views of a module's state.
What is compiled is the whole step, as upstream does: forward, loss and the call of ``backward``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mixbackend.benchmarks.models.entry import Entry, Loaded
from mixbackend.benchmarks.models.trees import map_tensors, tensors_in
from mixbackend.benchmarks.one_model.accuracy import Phase
from mixbackend.benchmarks.one_model.precision import Precision, autocast_type

SEED = 1337
CALLS = 2
"""The last call is compared too: what a backend remembers between calls (weights, buffers) must not show."""
CALLS_WITH_GRAPHS = 6
"""With CUDA graphs later calls warm up, record and replay."""

ONLY_TRAINING_MODE = frozenset("tts_angular tacotron2 demucs hf_Reformer yolov3".split())
"""TorchBench models that upstream checks in training mode; the others train in evaluation mode there."""

Step = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]


def load(entry: Entry, phase: Phase, device: str = "cpu", always_training_mode: bool = False) -> Loaded:
    """The entry as upstream's accuracy check sees it."""
    evaluated = entry.family == "torchbench" and entry.name not in ONLY_TRAINING_MODE and not always_training_mode
    return entry.load(train=phase == "training" and not evaluated, device=device)


def step_of(entry: Entry, phase: Phase, precision: Precision = "float32", device: str = "cpu") -> Step:
    """The function of (module, args, kwargs) that is compiled and timed: in training with the backward in it."""
    forward = forward_of(entry, phase, precision, device)
    return forward if phase == "inference" else with_backward(forward)


def forward_of(entry: Entry, phase: Phase, precision: Precision = "float32", device: str = "cpu") -> Step:
    """The step without its backward: the output, in training with the loss."""
    inner = autocast_type(precision)
    device_type = torch.device(device).type

    def infer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return module(*args, **kwargs)

    def lose(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Tensor]:
        output = module(*args, **kwargs)
        return output, entry.loss(output)

    def lose_mixed(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Tensor]:
        with torch.autocast(device_type, dtype=inner):
            output = module(*args, **kwargs)
            return output, entry.loss(output)

    if phase == "inference":
        return infer
    return lose if inner is None else lose_mixed


def with_backward(forward: Step) -> Step:
    """A training step of what gives output and loss."""

    def train(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Tensor]:
        output, loss = forward(module, args, kwargs)
        loss.backward()
        return output, loss

    return train


def run(entry: Entry, phase: Phase, loaded: Loaded, step: Step, calls: int = CALLS) -> list[Any]:
    """Run ``step`` on a copy of the module, and collect what must agree after the first and the last call."""
    module, args, kwargs = loaded
    return run_in_place(entry, phase, (copy.deepcopy(module), args, kwargs), step, calls)


def run_in_place(entry: Entry, phase: Phase, loaded: Loaded, step: Step, calls: int = CALLS) -> list[Any]:
    """``run`` on the module itself: what was compiled for it stays of use."""
    module, args, kwargs = loaded
    torch.manual_seed(SEED)
    results = []
    for number in range(calls):
        module.zero_grad(set_to_none=True)
        inputs = map_tensors(Tensor.clone, (args, kwargs))
        with torch.set_grad_enabled(phase == "training"):
            produced = step(module, *inputs)
        if number in (0, calls - 1):
            results.append(collect(entry, phase, module, produced))
    return results


def run_exact(entry: Entry, phase: Phase, loaded: Loaded, calls: int = CALLS) -> list[Any] | None:
    """The same in float64 with eager, or ``None`` where the model cannot run so (a dtype is written into it)."""
    module, args, kwargs = loaded
    wide = map_tensors(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, (args, kwargs))
    try:
        return run(entry, phase, (copy.deepcopy(module).double(), *wide), step_of(entry, phase), calls)
    except (RuntimeError, TypeError, ValueError):
        return None


def collect(entry: Entry, phase: Phase, module: nn.Module, produced: Any) -> Any:
    """What must agree: the output; in training the loss, gradients, parameters and buffers."""
    if phase == "inference":
        shown = _comparable(produced)
        if next(tensors_in(shown), None) is None:
            raise ValueError(f"{entry.name}: no tensor in an output of type {type(produced).__name__}")
        return _copied(shown)
    output, loss = produced
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in module.named_parameters()
    }
    state = (gradients, dict(module.named_parameters()), dict(module.named_buffers()))
    shown = _comparable(output) if entry.family == "torchbench" else None
    return _copied((shown, loss, *state))


def _comparable(output: Any) -> Any:
    """Answers to questions are compared by their loss alone: upstream's rule, for logits of padding mean nothing."""
    if type(output).__name__ == "QuestionAnsweringModelOutput":
        return output.loss
    return output


def _copied(value: Any) -> Any:
    return map_tensors(lambda tensor: tensor.detach().clone(), value)
