"""The code generator: regions to fused loops, loops to machine code."""
