"""A stand-in for TensorRT's Python package: engines are ONNX models that ONNX Runtime runs on the CPU.

It has exactly the names that a recorded description of a real release has (``FAKE_TENSORRT`` says which one), so code
that uses a name which that release lacks fails here too. ``FAKE_TENSORRT_FAULT`` makes it misbehave: ``parse``,
``build``, ``crash``, ``hang``, ``wrong``, ``run``, ``baked`` (no weight can be refitted).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numpy
import onnx
import onnxruntime
from onnx import helper, numpy_helper, shape_inference

_FOLDER = Path(__file__).parents[2] / "descriptions"
_DESCRIPTION = json.loads((_FOLDER / f"{os.environ['FAKE_TENSORRT']}.json").read_text())
_CLASSES = {name: frozenset(members.split()) for name, members in _DESCRIPTION["classes"].items()}
_FAULT = os.environ.get("FAKE_TENSORRT_FAULT", "")

__version__ = _DESCRIPTION["version"]
_NARROW = __version__.startswith("8")
_MAGIC = b"fake engine "
_SCRATCH = 256


class _Member(int):
    """A member of an enumeration; equal to itself alone."""

    def __new__(cls, enumeration, name, value):
        made = super().__new__(cls, value)
        made.text = f"{enumeration}.{name}"
        return made

    def __eq__(self, other):
        return isinstance(other, _Member) and self.text == other.text

    def __hash__(self):
        return hash(self.text)

    def __repr__(self):
        return self.text


def _enumeration(name):
    members = _DESCRIPTION["enums"][name].split()
    found = {member: _Member(name, member, value) for value, member in enumerate(members)}
    return SimpleNamespace(__members__=found, **found)


class _Described:
    """Has no public name that the release's class of the same name lacks."""

    def __getattribute__(self, name):
        if not name.startswith("_") and name not in _CLASSES[_real(self)]:
            raise AttributeError(f"TensorRT {__version__} has no {_real(self)}.{name}")
        return super().__getattribute__(name)

    def __setattr__(self, name, value):
        if not name.startswith("_") and name not in _CLASSES[_real(self)]:
            raise AttributeError(f"TensorRT {__version__} has no {_real(self)}.{name}")
        super().__setattr__(name, value)


def _real(instance):
    return next(base.__name__ for base in type(instance).__mro__ if base.__name__ in _CLASSES)


_ENUMS = SimpleNamespace(**{name: _enumeration(name) for name in _DESCRIPTION["enums"]})
globals().update(vars(_ENUMS))

_TYPES = {
    numpy.dtype(numpy.float32): "FLOAT",
    numpy.dtype(numpy.float16): "HALF",
    numpy.dtype(numpy.int32): "INT32",
    numpy.dtype(numpy.bool_): "BOOL",
}
if not _NARROW:
    _TYPES[numpy.dtype(numpy.int64)] = "INT64"


def _kind(dtype):
    return getattr(_ENUMS.DataType, _TYPES[numpy.dtype(dtype)])


class ILogger(_Described):
    Severity = _Severity = SimpleNamespace(INTERNAL_ERROR=0, ERROR=1, WARNING=2, INFO=3, VERBOSE=4)

    def __init__(self):
        pass


if "IProgressMonitor" in _CLASSES:

    class IProgressMonitor(_Described):
        def __init__(self):
            pass


class _HostMemory(bytes):
    pass


class ITimingCache(_Described):
    def __init__(self, content):
        self._content = content

    def serialize(self):
        return _HostMemory(self._content)

    def combine(self, other, ignore_mismatch):
        self._add(other._known())
        return True

    def reset(self):
        self._content = b"timings "
        return True

    def _known(self):
        return set(self._content.removeprefix(b"timings ").split())

    def _add(self, timings):
        self._content = b"timings " + b" ".join(sorted(self._known() | set(timings)))


class IOptimizationProfile(_Described):
    def __init__(self):
        self._shapes = {}

    def set_shape(self, input, min, opt, max):
        self._shapes[input] = [list(min), list(opt), list(max)]


class IBuilderConfig(_Described):
    def __init__(self):
        self._flags = {_ENUMS.BuilderFlag.TF32.text}
        self._profiles = []
        self._cache = None
        self._limits = {}
        self.builder_optimization_level = 3
        self._tactics = None
        self._preview = set()
        if "progress_monitor" in _CLASSES["IBuilderConfig"]:
            self.progress_monitor = None

    def set_flag(self, flag):
        self._flags.add(flag.text)

    def clear_flag(self, flag):
        self._flags.discard(flag.text)

    def set_memory_pool_limit(self, pool, size):
        self._limits[pool.text] = size

    def set_tactic_sources(self, sources):
        self._tactics = sources
        return True

    def set_preview_feature(self, feature, on):
        self._preview.add(feature.text)

    def add_optimization_profile(self, profile):
        self._profiles.append(profile._shapes)
        return len(self._profiles) - 1

    def create_timing_cache(self, content):
        return None if content and not bytes(content).startswith(b"timings ") else ITimingCache(bytes(content))

    def set_timing_cache(self, cache, ignore_mismatch):
        self._cache = cache
        return True

    def get_timing_cache(self):
        return self._cache


class ITensor(_Described):
    def __init__(self, name, dtype, shape, graph_dtype=None):
        self.name = name
        self.dtype = dtype
        self._graph_dtype = graph_dtype
        self.shape = shape
        self.is_shape_tensor = False


class ILayer(_Described):
    def __init__(self, node, types):
        self._outputs = [ITensor(name, _told(types.get(name)), (), types.get(name)) for name in node.output]
        self._inputs = [ITensor(name, _told(types.get(name)), ()) for name in node.input]
        self.num_outputs = len(self._outputs)
        self.num_inputs = len(self._inputs)
        self.type = _ENUMS.LayerType.CAST if node.op_type == "Cast" else _ENUMS.LayerType.ELEMENTWISE
        self._node = node.op_type

    def get_output(self, place):
        return self._outputs[place]

    def get_input(self, place):
        return self._inputs[place]

    def set_output_type(self, place, dtype):
        self._constrained = dtype


def _told(dtype):
    """What a network tells: release 8 tells float32 of whatever computes in floating point."""
    return _ENUMS.DataType.FLOAT if _NARROW and dtype == _ENUMS.DataType.HALF else dtype


class INetworkDefinition(_Described):
    def __init__(self):
        self._model = None
        self._layers = []

    @property
    def num_layers(self):
        return len(self._layers)

    def get_layer(self, index):
        return self._layers[index]


class Builder(_Described):
    def __init__(self, logger):
        self._logger = logger

    def create_network(self, flags):
        wanted = (
            _ENUMS.NetworkDefinitionCreationFlag.EXPLICIT_BATCH
            if _NARROW
            else _ENUMS.NetworkDefinitionCreationFlag.STRONGLY_TYPED
        )
        assert flags == 1 << int(wanted), f"network flags {flags}"
        return INetworkDefinition()

    def create_builder_config(self):
        return IBuilderConfig()

    def create_optimization_profile(self):
        return IOptimizationProfile()

    def build_serialized_network(self, network, config):
        if _FAULT == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if _FAULT == "hang":
            print("still at it", flush=True)
            time.sleep(600)
        monitor = getattr(config, "progress_monitor", None)
        if monitor is not None:
            monitor.phase_start("Building Engine", None, 2)
            monitor.step_complete("Building Engine", 1)
            monitor.phase_finish("Building Engine")
        if _FAULT == "build":
            self._logger.log(ILogger._Severity.ERROR, "no implementation for node Conv_1")
            return None
        _check_precision(network, config)
        if config._cache is not None:
            config._cache._add([hashlib.sha256(network._model.SerializeToString()).hexdigest()[:8].encode()])
        header = {
            "version": __version__,
            "refit": "BuilderFlag.REFIT" in config._flags and _FAULT != "baked",
            "flags": sorted(config._flags),
            "profiles": config._profiles,
        }
        text = json.dumps(header).encode()
        return _HostMemory(_MAGIC + len(text).to_bytes(4, "little") + text + network._model.SerializeToString())


def _check_precision(network, config):
    """Release 8 may compute anything in float16 once the flag is set, unless layers are held to float32."""
    if not _NARROW or "BuilderFlag.FP16" not in config._flags:
        return
    for layer in network._layers:
        kinds = {tensor._graph_dtype for tensor in layer._outputs}
        if _ENUMS.DataType.FLOAT in kinds and layer._node not in ("Cast", "Constant", "Shape"):
            assert layer.precision == _ENUMS.DataType.FLOAT, f"{layer._node} may be computed in float16"
        if kinds == {_ENUMS.DataType.HALF}:
            assert not hasattr(layer, "precision"), f"{layer._node} may not be computed in float16"


class OnnxParser(_Described):
    def __init__(self, network, logger):
        self._network = network
        self._errors = []

    @property
    def num_errors(self):
        return len(self._errors)

    def get_error(self, place):
        return self._errors[place]

    def parse_from_file(self, path):
        if _FAULT == "parse":
            self._errors.append("In node 3 (importNonZero): UNSUPPORTED_NODE")
            return False
        model = onnx.load(path)
        inferred = shape_inference.infer_shapes(model).graph
        types = {
            item.name: _kind(helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type))
            for item in (*inferred.value_info, *inferred.output)
            if helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type) in _TYPES
        }
        self._network._model = model
        self._network._layers = [ILayer(node, types) for node in model.graph.node]
        return True


class Runtime(_Described):
    def __init__(self, logger):
        self._logger = logger

    def deserialize_cuda_engine(self, content):
        content = bytes(content)
        if not content.startswith(_MAGIC):
            return None
        start = len(_MAGIC) + 4
        end = start + int.from_bytes(content[start - 4 : start], "little")
        header = json.loads(content[start:end])
        if header["version"] != __version__:
            return None
        return ICudaEngine(header, onnx.ModelProto.FromString(content[end:]))


class ICudaEngine(_Described):
    def __init__(self, header, model):
        self._header = header
        self._model = model
        self._session = None
        names = {tensor.name for tensor in model.graph.initializer}
        self._inputs = {item.name: item for item in model.graph.input if item.name not in names}
        self._outputs = {item.name: item for item in model.graph.output}
        self.num_io_tensors = len(self._inputs) + len(self._outputs)
        if "device_memory_size" in _CLASSES["ICudaEngine"]:
            self.device_memory_size = _SCRATCH
        if "device_memory_size_v2" in _CLASSES["ICudaEngine"]:
            self.device_memory_size_v2 = _SCRATCH

    def get_tensor_name(self, place):
        return [*self._inputs, *self._outputs][place]

    def get_tensor_mode(self, name):
        return _ENUMS.TensorIOMode.INPUT if name in self._inputs else _ENUMS.TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name):
        return _kind(_border_type(self._item(name)))

    def _item(self, name):
        return self._inputs.get(name) or self._outputs[name]

    def create_execution_context(self, strategy=None):
        assert strategy is not None, "the scratch memory would be TensorRT's own"
        return IExecutionContext(self)

    def create_execution_context_without_device_memory(self):
        return IExecutionContext(self)

    def _run(self, feeds):
        if self._session is None:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            options.intra_op_num_threads = 1
            self._session = onnxruntime.InferenceSession(
                self._model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        return self._session.run(list(self._outputs), feeds)


def _graph_type(item):
    return numpy.dtype(helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type))


def _border_type(item):
    dtype = _graph_type(item)
    return numpy.dtype(numpy.int32) if _NARROW and dtype == numpy.int64 else dtype


class IExecutionContext(_Described):
    def __init__(self, engine):
        self._engine = engine
        self._addresses = {}
        self._shapes = {}
        self._profile = 0
        self._scratch = None

    def set_device_memory(self, memory, size):
        assert size >= _SCRATCH
        self._scratch = memory

    def _get_scratch(self):
        return self._scratch

    def _set_scratch(self, memory):
        self._scratch = memory

    device_memory = property(_get_scratch, _set_scratch)

    def set_optimization_profile_async(self, profile_index, stream_handle):
        self._profile = profile_index
        return profile_index < max(1, len(self._engine._header["profiles"]))

    def set_input_shape(self, name, shape):
        least, _, most = self._engine._header["profiles"][self._profile][name]
        if not all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True)):
            return False
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name, memory):
        self._addresses[name] = memory
        return True

    def get_tensor_shape(self, name):
        """Found by running on zeros, since the stand-in has no shape arithmetic of its own."""
        feeds = {key: numpy.zeros(self._shape(key), _graph_type(item)) for key, item in self._engine._inputs.items()}
        results = dict(zip(self._engine._outputs, self._engine._run(feeds), strict=True))
        return tuple(results[name].shape)

    def _shape(self, name):
        known = [item.dim_value for item in self._engine._inputs[name].type.tensor_type.shape.dim]
        return self._shapes.get(name, tuple(known))

    def execute_async_v3(self, stream_handle):
        assert self._scratch, "a context without scratch memory"
        if _FAULT == "run":
            return False
        feeds = {}
        for name, item in self._engine._inputs.items():
            feeds[name] = _at(self._addresses[name], self._shape(name), _border_type(item)).astype(_graph_type(item))
        results = self._engine._run(feeds)
        for (name, item), result in zip(self._engine._outputs.items(), results, strict=True):
            refit = self._engine._header["refit"]
            wrong = (_FAULT == "wrong" or (_FAULT == "wrong refit" and refit)) and result.dtype.kind == "f"
            _at(self._addresses[name], result.shape, _border_type(item))[...] = result * 1.5 if wrong else result
        return True


def _at(address, shape, dtype):
    size = int(numpy.prod(shape, dtype=numpy.int64)) * dtype.itemsize
    memory = (ctypes.c_char * max(size, 1)).from_address(address)
    return numpy.frombuffer(memory, dtype, size // dtype.itemsize).reshape(shape)


class Weights:
    def __init__(self, *given):
        if len(given) == 1:
            self._array = given[0]
            return
        assert _DESCRIPTION["weights_from_address"], "this release takes numpy arrays alone"
        kind, address, count = given
        dtype = next(dtype for dtype, name in _TYPES.items() if kind == getattr(_ENUMS.DataType, name))
        self._array = _at(address, (count,), dtype)


class Refitter(_Described):
    def __init__(self, engine, logger):
        self._engine = engine
        self._given = {}

    def _names(self):
        if not self._engine._header["refit"]:
            return {}
        tensors = self._engine._model.graph.initializer
        return {tensor.name: tensor for tensor in tensors if numpy_helper.to_array(tensor).dtype.kind == "f"}

    def get_all_weights(self):
        return list(self._names())

    def get_missing_weights(self):
        return []

    def set_named_weights(self, name, weights):
        tensor = self._names().get(name)
        if tensor is None:
            return False
        known, given = numpy_helper.to_array(tensor), weights._array
        if known.dtype != given.dtype or known.size != given.size:
            return False
        self._given[name] = given
        return True

    def refit_cuda_engine(self):
        for name, tensor in self._names().items():
            if name in self._given:
                values = numpy.array(self._given[name]).reshape(numpy_helper.to_array(tensor).shape)
                tensor.CopyFrom(numpy_helper.from_array(values, name))
        self._engine._session = None
        return True
