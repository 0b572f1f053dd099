"""The partitioner: where every op of a graph should run.

Place: between describing the graph and compiling regions. ``place`` is the way in; imports the contract only.
"""

from mixbackend.partitioner.placement import place

__all__ = ["place"]
