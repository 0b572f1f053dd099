"""The Triton target: kernels for GPUs, see ``target``."""
