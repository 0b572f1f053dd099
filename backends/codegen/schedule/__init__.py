"""From stages to kernels: inlining, fusion, loop order, memory."""
