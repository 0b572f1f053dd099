"""Compile: a captured graph's way to running code."""
