"""A model under one peer, as a call that can be timed.

Place: used in a peer's own process. Input: a module, its inputs, and the peer that runs them. Output: ``Executor``.
Invariants: every peer has the settings that serve it best when it is alone in its process; inference runs under
``torch.no_grad``, as users' code does. A training step is forward with loss, backward and plain SGD; forward and
backward are compiled, the optimizer is torch's own for all peers.
"""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixbackend.benchmarks.models.trees import tensors_in
from mixbackend.benchmarks.peers.catalogue import is_ours
from mixbackend.benchmarks.peers.models import Inputs, Loss, WithLoss

LEARNING_RATE = 1e-4
"""Small: weights must stay near where they started, however many steps are timed."""

_INDUCTOR_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "inductor": {},
    "inductor-freezing": {"freezing": True},
    "inductor-max-autotune": {"max_autotune": True, "coordinate_descent_tuning": True},
}


@dataclass(frozen=True, slots=True)
class Executor:
    """One peer, ready to run.

    Attributes:
        run: one inference or one training step.
        results: what ``run`` returned as tensors that can be compared: outputs, or loss and what the step left behind.
        report: the mixture's report as plain data; empty for others.
    """

    run: Callable[[], Any]
    results: Callable[[Any], dict[str, Tensor]]
    report: Callable[[], dict[str, Any]]


def inference(
    peer: str, configuration: Mapping[str, Any] | None, module: nn.Module, inputs: Inputs, threads: int
) -> Executor:
    """A module under a peer; exports and conversions happen here, compilation of the others in the first call."""
    if peer == "onnxruntime":
        return _onnxruntime(module, inputs, threads)
    if peer == "openvino":
        return _openvino(module, inputs, threads)
    compiled, report = _compiled(peer, configuration, module, frozen=True)

    def run() -> Any:
        with torch.no_grad():
            return compiled(*inputs)

    return Executor(run, _outputs, report)


def training(
    peer: str, configuration: Mapping[str, Any] | None, module: nn.Module, inputs: Inputs, loss: Loss
) -> Executor:
    """A training step under a peer."""
    whole = WithLoss(module, loss)
    compiled, report = _compiled(peer, configuration, whole, frozen=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)

    def run() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        value = compiled(*inputs)
        value.backward()
        optimizer.step()
        return value

    def results(value: Tensor) -> dict[str, Tensor]:
        gradients = {
            f"gradient of {name}": weight.grad for name, weight in module.named_parameters() if weight.grad is not None
        }
        buffers = {f"buffer {name}": buffer for name, buffer in module.named_buffers()}
        return _copied({"loss": value, **gradients, **buffers})

    return Executor(run, results, report)


def _compiled(
    peer: str, configuration: Mapping[str, Any] | None, module: nn.Module, frozen: bool
) -> tuple[Callable[..., Any], Callable[[], dict[str, Any]]]:
    if peer == "eager":
        return module, dict
    if is_ours(peer):
        import mixbackend

        mixture = mixbackend.auto(dict(configuration or {}))
        return torch.compile(module, backend=mixture), lambda: mixture.report().to_dict()
    options = dict(_INDUCTOR_OPTIONS[peer])
    if peer == "inductor-max-autotune" and frozen:
        options["freezing"] = True  # its own matrix kernels are tried for constant weights only
    return torch.compile(module, backend="inductor", options=options), dict


def _onnxruntime(module: nn.Module, inputs: Inputs, threads: int) -> Executor:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads
    names = [f"input_{position}" for position in range(len(inputs))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        with torch.no_grad():
            torch.onnx.export(module, inputs, path, input_names=names, dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    taken = {value.name for value in session.get_inputs()}
    feed = {name: value.numpy() for name, value in zip(names, inputs, strict=True) if name in taken}
    return Executor(lambda: session.run(None, feed), _arrays, dict)


def _openvino(module: nn.Module, inputs: Inputs, threads: int) -> Executor:
    """Converted whole with fixed shapes. It has bfloat16 as a precision hint over a float32 model."""
    import openvino

    half = any(weight.dtype == torch.bfloat16 for weight in module.parameters())
    module = copy.deepcopy(module).float()
    values = tuple(value.float() if value.is_floating_point() else value for value in inputs)
    with torch.no_grad():
        model = _converted(openvino, module, values)
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
        "INFERENCE_NUM_THREADS": str(threads),
    }
    request = openvino.compile_model(model, "CPU", settings).create_infer_request()
    feed = [value.numpy() for value in values]

    def run() -> Any:
        request.infer(feed, share_inputs=True, share_outputs=True)
        return [tensor.data for tensor in request.output_tensors]

    return Executor(run, _arrays, dict)


def _converted(openvino: Any, module: nn.Module, values: Inputs) -> Any:
    """Traced, which users meet first; exported where tracing meets an operator without a rule.

    Converting sets the level of the root logger for the whole process; here it is put back.
    """
    root = logging.getLogger()
    level = root.level
    try:
        return _traced_or_exported(openvino, module, values)
    finally:
        root.setLevel(level)


def _traced_or_exported(openvino: Any, module: nn.Module, values: Inputs) -> Any:
    try:
        return openvino.convert_model(module, example_input=values, input=[list(value.shape) for value in values])
    except Exception as traced:
        try:
            return openvino.convert_model(torch.export.export(module, values))
        except Exception as exported:
            raise RuntimeError(f"traced: {traced}; exported: {exported}") from exported


def _outputs(produced: Any) -> dict[str, Tensor]:
    return _copied({f"output {position}": value for position, value in enumerate(tensors_in(produced))})


def _arrays(produced: Any) -> dict[str, Tensor]:
    return _copied({f"output {position}": torch.from_numpy(value) for position, value in enumerate(produced)})


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
