"""Generated kernels against torch's inductor and eager, pattern by pattern."""
