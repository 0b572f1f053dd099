"""Stands in for torch's tree on a machine without a GPU: graphs that write into the same memory at every replay.

Counts of who holds a result are torch's own; the rest is as little as ``torch_compat.graph_trees`` asks for.
"""

from __future__ import annotations

import sys
import weakref

import torch
from torch._inductor import cudagraph_trees


class Node:
    """A graph that has been recorded."""

    def __init__(self, made, alone=None):
        self.unaliased_in_all_paths = list(alone or [item is not None for item in made])
        self.cached_tensor_outputs = [None if item is None else item.clone() for item in made]
        # As torch's own, which makes its tensors from objects for storages.
        self.storages = [item.untyped_storage() for item in self.cached_tensor_outputs if item is not None]
        me = weakref.ref(self)

        def unheld(place):
            return sys.getrefcount(me().cached_tensor_outputs[place]) == 2

        self.outputs_weakrefs = [
            item
            if item is None
            else cudagraph_trees.StorageWeakRefWrapper(item, extra_ref_check=lambda place=place: unheld(place))
            for place, item in enumerate(self.cached_tensor_outputs)
        ]

    def write(self, values):
        with torch.no_grad():
            for item, value in zip(self.cached_tensor_outputs, values, strict=True):
                if item is not None:
                    item.copy_(value)


class Manager:
    """A tree; a call begins a new path unless a backward is awaited."""

    def __init__(self):
        self.ids_to_funcs = {}
        self.current_node = None
        self.graph = object()
        self.generation = 0
        self.seen = 0
        self.awaits = False

    def can_start_new_generation(self):
        return self.generation != self.seen and not self.awaits

    def get_curr_generation(self):
        return self.generation

    def set_to_running_backward(self):
        self.awaits = False

    def _run(self, inputs, function):
        return "replayed"

    def recorded(self, function, names, results, static, device, phase, constants=()):
        """In place of ``cuda_graph_recorded``."""
        self.ids_to_funcs[len(self.ids_to_funcs)] = function
        nodes = []

        def run(inputs):
            made = function(inputs)
            if not nodes:
                nodes.append(Node(made))
            (node,) = nodes
            node.write(made)
            del made
            self.current_node = node
            self.seen = self.generation
            self.awaits = phase == "forward"
            return list(node.cached_tensor_outputs)

        return run
