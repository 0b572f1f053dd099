"""What several backends share: re-tracing of regions and lowering to ONNX."""
