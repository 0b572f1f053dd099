"""The imported package, whatever its release.

Place: under the worker that builds engines and under what runs them. Input: the module ``tensorrt``. Output: steps that
read the same for versions 8.6 to 11; the table in ``versions`` says what they go around.
Invariants: no other module touches what differs. What is the same everywhere (tensor names and addresses,
``execute_async_v3``, timing caches, profiles) is used where it is needed.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
import torch

from mixbackend.backends.common import forks
from mixbackend.backends.tensorrt.precision import float32_by_name, hold_float32
from mixbackend.backends.tensorrt.versions import Release

_EXTERNAL_TACTICS = ("CUBLAS", "CUBLAS_LT", "CUDNN")
"""Tactics that call libraries which need not be installed."""
_TYPES = {
    torch.float32: "FLOAT",
    torch.float16: "HALF",
    torch.bfloat16: "BF16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """How an engine is to be built.

    Attributes:
        workspace_bytes: most scratch memory that its kernels may use.
        level: of the builder's optimisation, 0 to 5: more is slower to build.
        refit: whether named weights can be given anew.
        tf32: whether float32 products may round their operands to TF32.
        halves: whether the graph computes in float16 anywhere.
    """

    workspace_bytes: int
    level: int
    refit: bool
    tf32: bool
    halves: bool


class Api:
    """The imported package.

    Args:
        module: ``tensorrt``.
        log: takes each message of TensorRT that is a warning or worse.
    """

    def __init__(self, module: types.ModuleType, log: Callable[[str], None]) -> None:
        self.trt: Any = module
        self.release = Release.of(module.__version__)
        self.logger = _logger(module, log)
        self._opening = forks.long_lock()

    # --- building ----------------------------------------------------------------------------------------------------

    def network(self, builder: Any) -> Any:
        """An empty network with all sizes explicit and, where there are such, with the types of the graph."""
        flags = self.trt.NetworkDefinitionCreationFlag
        chosen = flags.STRONGLY_TYPED if self.release.strongly_typed else flags.EXPLICIT_BATCH
        return builder.create_network(1 << int(chosen))

    def configuration(self, builder: Any, settings: Settings, tell: Callable[[str], None]) -> Any:
        """The builder's configuration."""
        trt, config = self.trt, builder.create_builder_config()
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_bytes)
        config.builder_optimization_level = settings.level
        config.set_tactic_sources(self._own_tactics())
        wanted = {"REFIT": settings.refit, "TF32": settings.tf32}
        if not self.release.strongly_typed:
            wanted |= {"FP16": settings.halves, "OBEY_PRECISION_CONSTRAINTS": settings.halves}
        for name, wish in wanted.items():
            flag = getattr(trt.BuilderFlag, name)
            (config.set_flag if wish else config.clear_flag)(flag)
        sharing = getattr(trt.PreviewFeature, "PROFILE_SHARING_0806", None)
        if sharing is not None:
            config.set_preview_feature(sharing, True)
        if hasattr(trt, "IProgressMonitor"):
            config.progress_monitor = _monitor(trt, tell)
        return config

    def hold_types(self, network: Any, model: Path) -> None:
        """Keep what a model computes in float32 from being computed in float16, in networks without types."""
        if not self.release.strongly_typed:
            hold_float32(network, self.trt, float32_by_name(onnx.load(str(model), load_external_data=False)))

    def _own_tactics(self) -> int:
        sources = self.trt.TacticSource.__members__
        return sum(1 << int(source) for name, source in sources.items() if name not in _EXTERNAL_TACTICS)

    # --- running -----------------------------------------------------------------------------------------------------

    def open(self, serialised: bytes | memoryview) -> Any:
        """An engine of its bytes.

        Raises:
            ValueError: TensorRT does not take them: they are damaged, or were built elsewhere.
        """
        # Regions are bound side by side, and a runtime serves one thread at a time.
        with self._opening:
            engine = self._runtime.deserialize_cuda_engine(serialised)
        if engine is None:
            raise ValueError(f"TensorRT {self.trt.__version__} does not take the engine")
        return engine

    @cached_property
    def _runtime(self) -> Any:
        return self.trt.Runtime(self.logger)

    def context(self, engine: Any) -> Any:
        """An execution context with scratch memory that the caller gives.

        Raises:
            RuntimeError: there is no memory left for it.
        """
        strategies = getattr(self.trt, "ExecutionContextAllocationStrategy", None)
        if strategies is None:
            context = engine.create_execution_context_without_device_memory()
        else:
            context = engine.create_execution_context(strategies.USER_MANAGED)
        if context is None:
            raise RuntimeError("TensorRT made no execution context: the GPU's memory is full")
        return context

    def scratch_bytes(self, engine: Any) -> int:
        """Scratch memory that a call needs, whatever its sizes."""
        newer = getattr(engine, "device_memory_size_v2", None)
        return int(engine.device_memory_size if newer is None else newer)

    def give_scratch(self, context: Any, address: int, size: int) -> None:
        """Hand a context its scratch memory."""
        if hasattr(context, "set_device_memory"):
            context.set_device_memory(address, size)
        else:
            context.device_memory = address

    def input_names(self, engine: Any) -> tuple[str, ...]:
        """Names of the tensors that a call takes."""
        return self._names(engine, self.trt.TensorIOMode.INPUT)

    def output_names(self, engine: Any) -> tuple[str, ...]:
        """Names of the tensors that a call gives."""
        return self._names(engine, self.trt.TensorIOMode.OUTPUT)

    def _names(self, engine: Any, mode: Any) -> tuple[str, ...]:
        names = (engine.get_tensor_name(place) for place in range(engine.num_io_tensors))
        return tuple(name for name in names if engine.get_tensor_mode(name) == mode)

    def dtype(self, kind: Any) -> torch.dtype:
        """Torch's element type for one of TensorRT's.

        Raises:
            ValueError: torch has no such tensors here.
        """
        for dtype, name in _TYPES.items():
            if kind == getattr(self.trt.DataType, name, None):
                return dtype
        raise ValueError(f"no tensors of {kind}")

    # --- weights -----------------------------------------------------------------------------------------------------

    def refittable(self, engine: Any) -> frozenset[str]:
        """Names of the weights that can be given anew."""
        return frozenset(self.trt.Refitter(engine, self.logger).get_all_weights())

    def refit(self, engine: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Give an engine, of which no call is under way, other weights; the tensors are dense and on the CPU.

        Raises:
            RuntimeError: it does not take one of them, or is left with a weight that was not given.
        """
        refitter = self.trt.Refitter(engine, self.logger)
        given = []
        for name, tensor in weights:
            ready = self._weights(tensor)
            given.append((tensor, ready))  # TensorRT reads them when it refits
            if not refitter.set_named_weights(name, ready):
                raise RuntimeError(f"TensorRT does not take {tensor.dtype}{tuple(tensor.shape)} for the weight {name}")
        if not refitter.refit_cuda_engine():
            missing = ", ".join(sorted(refitter.get_missing_weights())[:8])
            raise RuntimeError(f"TensorRT could not refit the engine; missing weights: {missing or 'none'}")

    def _weights(self, tensor: torch.Tensor) -> Any:
        if not self.release.strongly_typed:
            return self.trt.Weights(tensor.numpy())
        kind = getattr(self.trt.DataType, _TYPES[tensor.dtype])
        return self.trt.Weights(kind, tensor.data_ptr(), tensor.numel())


def parse_errors(parser: Any) -> str:
    """What a parser found wrong, each with its node where that is known."""
    return "; ".join(str(parser.get_error(place)) for place in range(parser.num_errors))


def add_profiles(builder: Any, config: Any, profiles: Sequence[Sequence[tuple[str, Any, Any, Any]]]) -> None:
    """Add optimisation profiles: per input with symbolic sizes its name and its least, usual and largest shape."""
    for listed in profiles:
        profile = builder.create_optimization_profile()
        for name, least, usual, largest in listed:
            profile.set_shape(name, least, usual, largest)
        config.add_optimization_profile(profile)


def _logger(trt: Any, log: Callable[[str], None]) -> Any:
    class Logger(trt.ILogger):
        """Hands on what is a warning or worse."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if int(severity) <= int(trt.ILogger.Severity.WARNING):
                log(message)

    return Logger()


def _monitor(trt: Any, tell: Callable[[str], None]) -> Any:
    class Monitor(trt.IProgressMonitor):
        """Tells which phase of a build has begun."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            tell(f"{phase_name}, {num_steps} steps")

        def step_complete(self, phase_name: str, step: int) -> bool:
            return True

        def phase_finish(self, phase_name: str) -> None:
            return None

    return Monitor()
