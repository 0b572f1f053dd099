"""The ONNX Runtime backend; importing this does not import the runtime."""

from mixbackend.backends.onnxruntime.backend import OnnxRuntimeBackend

__all__ = ["OnnxRuntimeBackend"]
