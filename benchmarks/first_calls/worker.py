"""One process that makes one first call: worker of ``first_calls.measure``.

Input: an ``Order`` as JSON, its one argument. Output: one JSON value, ``{"seconds": {step: number}, "phases": {...}}``.
Steps: ``torch_s`` imports torch, ``model_s`` makes the model, ``backend_s`` is ``auto()`` for the mixture and nothing
for others, ``call_s`` is torch.compile and the first call (with the backward in training).
Invariants: nothing is imported before its step that a user would not have imported by then.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixbackend.benchmarks.one_model.accuracy import Phase
    from mixbackend.host.stack_samples import Sampler

MIXTURE = "mixture"
MLP = "mlp"
"""Four linear layers with GELU between them, which is no model of the suite."""
TRUE_SIZE = "true-size:"
"""Before the name of a real architecture at true size, one sample, as ``bench peers`` has them."""
ON_GPU = "gpu:"
"""Before ``MLP``, or the name of a row of the GPU benchmark; the phase is the row's own."""

_WIDTHS, _ROWS = (256, 512, 512, 256, 64), 64


@dataclass(frozen=True)
class Order:
    """What a worker is to do.

    Attributes:
        model: ``MLP``, an entry of the suite, or ``TRUE_SIZE`` or ``ON_GPU`` and a name.
        phase: inference or training.
        peer: ``MIXTURE``, or a backend's name for torch.compile.
        backends: that the mixture may use; all usable ones if empty.
        sampled: whether stacks are sampled, which adds a few percent to the time.
        stacks: file for the collapsed stacks, ``""`` for none.
    """

    model: str
    phase: Phase
    peer: str
    backends: tuple[str, ...] = ()
    sampled: bool = False
    stacks: str = ""

    def to_json(self) -> str:
        """As a worker takes it."""
        return json.dumps(dataclasses.asdict(self))


def main(text: str) -> None:
    """Make the call and tell how long it took."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    order = Order(**json.loads(text))
    sampler = _begin_sampling() if order.sampled else None
    marks = [time.perf_counter()]
    import torch  # noqa: F401

    marks.append(time.perf_counter())
    step, arguments = _model(order)
    marks.append(time.perf_counter())
    backend = _backend(order)
    marks.append(time.perf_counter())
    _first_call(order, step, arguments, backend)
    marks.append(time.perf_counter())
    seconds = {
        name: after - before
        for name, (before, after) in zip(("torch_s", "model_s", "backend_s", "call_s"), pairwise(marks), strict=True)
    }
    answer: dict[str, Any] = {"seconds": seconds}
    if sampler is not None:
        answer["phases"] = _told(sampler, order)
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _model(order: Order) -> tuple[Any, tuple[Any, ...]]:
    """A function, and what it is called with."""
    if order.model == MLP:
        return _linear_layers(order.phase)
    if order.model.startswith(ON_GPU):
        return _on_gpu(order.model.removeprefix(ON_GPU), order.phase)
    if order.model.startswith(TRUE_SIZE):
        return _true_size(order.model.removeprefix(TRUE_SIZE), order.phase)
    from mixbackend.benchmarks.models.registry import find
    from mixbackend.benchmarks.one_model import steps

    entry = find(order.model)
    return steps.step_of(entry, order.phase), steps.load(entry, order.phase)


def _on_gpu(name: str, phase: Phase) -> tuple[Any, tuple[Any, ...]]:
    """As ``gpu_worker`` has them: float16, training under autocast."""
    import torch

    if name == MLP:
        return _linear_layers(phase, "cuda")
    from mixbackend.benchmarks.gpu_models import ROWS
    from mixbackend.benchmarks.peers.models import WithLoss

    row = ROWS[name]
    module, inputs = row.load(torch.device("cuda:0"))
    whole = WithLoss(module, row.loss)

    def train(*values: torch.Tensor) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = whole(*values)
        loss.backward()

    return train if row.phase == "training" else module, inputs


def _linear_layers(phase: Phase, device: str = "cpu") -> tuple[Any, tuple[Any, ...]]:
    import torch

    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for columns, rows in pairwise(_WIDTHS):
        layers += [torch.nn.Linear(columns, rows), torch.nn.GELU()]
    module = torch.nn.Sequential(*layers[:-1]).train(phase == "training").to(device)

    def infer(value: torch.Tensor) -> Any:
        return module(value)

    def train(value: torch.Tensor) -> Any:
        module(value).square().mean().backward()

    return train if phase == "training" else infer, (torch.randn(_ROWS, _WIDTHS[0], device=device),)


def _true_size(name: str, phase: Phase) -> tuple[Any, tuple[Any, ...]]:
    import torch

    from mixbackend.benchmarks.peers.suite_models import find_model

    model = find_model(name)
    trains = phase == "training"
    module, inputs = model.load(model.training_batch if trains else 1, trains, torch.float32)

    def infer(*values: torch.Tensor) -> Any:
        return module(*values)

    def train(*values: torch.Tensor) -> Any:
        model.loss(module(*values), values).backward()

    return train if trains else infer, inputs


def _backend(order: Order) -> Any:
    if order.peer != MIXTURE:
        return order.peer
    import mixbackend

    return mixbackend.auto({"backends": list(order.backends)}) if order.backends else mixbackend.auto()


def _first_call(order: Order, step: Any, arguments: tuple[Any, ...], backend: Any) -> None:
    import torch

    compiled = torch.compile(step, backend=backend)
    with torch.set_grad_enabled(order.phase == "training"):
        compiled(*arguments)
    if order.model.startswith(ON_GPU):
        torch.cuda.synchronize()


def _begin_sampling() -> Sampler:
    from mixbackend.host.stack_samples import Sampler

    sampler = Sampler()
    sampler.start()
    return sampler


def _told(sampler: Sampler, order: Order) -> dict[str, float]:
    """Seconds by phase; the collapsed stacks go into their file."""
    from mixbackend.benchmarks.first_calls.phases import seconds_by_phase
    from mixbackend.host.stack_samples import collapsed

    samples = sampler.stop()
    if order.stacks:
        with open(order.stacks, "w", encoding="utf-8") as file:
            file.write(collapsed(samples))
    return seconds_by_phase(samples)


if __name__ == "__main__":
    main(sys.argv[1])
