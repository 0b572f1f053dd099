"""The TensorRT backend; importing this imports neither TensorRT nor ONNX."""

from mixbackend.backends.tensorrt.backend import TensorRtBackend

__all__ = ["TensorRtBackend"]
