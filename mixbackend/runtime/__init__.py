"""What happens when a model is compiled and run: capture, describe, cut, compile, stitch, verify, repair."""
