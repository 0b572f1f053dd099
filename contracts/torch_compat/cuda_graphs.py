"""CUDA graphs of torch's own trees.

Place: a part of the door; see ``contracts.torch_compat``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx

from mixbackend.contracts.torch_compat.graph_trees import (
    finish_failed_warm_up,
    manager_of,
    take_back_all,
    trees_of_thread,
)


def cuda_graph_recorded(
    function: Any,
    names: Sequence[str],
    results: int,
    static: Sequence[int],
    device: int,
    phase: str,
    constants: Sequence[torch.Tensor] = (),
) -> Any:
    """A function as a CUDA graph of torch's own trees: run once as it is, then recorded, then replayed.

    Args:
        function: takes a list of tensors on the device and integers, empties it, and returns a sequence of tensors.
        names: of its arguments, for torch's messages.
        results: how many tensors it returns.
        static: positions of arguments that are the same memory at every call; others are copied into the graph's own.
        device: number of the device.
        phase: ``inference``, ``forward`` or ``backward``: how long results live.
        constants: tensors that the function reads beside its arguments, as long as it lives.

    Returns:
        A callable like the function. Its results are valid until the model is called again. What the function raises
        is raised, and others go on with the tree.

    A graph is recorded for every set of integers among the arguments. Torch's outer layer is left out: at every call it
    looks whether addresses are aligned. Here what is copied is aligned, the rest is where it was when it was recorded,
    and code that was compiled for aligned addresses looks itself.
    """
    from torch._inductor.cudagraph_utils import PlaceholderInfo

    placeholders = tuple(PlaceholderInfo(name, None, [], None) for name in names)
    known: dict[tuple[int, ...], Any] = {}
    places: list[int] | None = None

    def run(inputs: list[Any], may_repeat: bool = True) -> Any:
        nonlocal places
        if places is None:
            places = [place for place, item in enumerate(inputs) if isinstance(item, int)]
        key = tuple([inputs[place] for place in places])
        replay = known.get(key)
        try:
            return add(inputs, key) if replay is None else replay(inputs)
        except BaseException as error:
            unfinished = finish_failed_warm_up(device)
            # The function empties the list when it begins.
            if not (may_repeat and unfinished and inputs and isinstance(error, AssertionError)):
                raise
        # Another compiler's function had failed in its warm-up, on which torch's trees stumbled before ours began.
        return run(inputs, may_repeat=False)

    def add(inputs: list[Any], key: tuple[int, ...]) -> Any:
        known[key], made = trees_of_thread().cudagraphify(
            function,
            inputs,
            tuple(static),
            device_index=device,
            is_backward=phase == "backward",
            is_inference=phase == "inference",
            stack_traces=[None] * results,
            constants=tuple(constants),
            placeholders=placeholders,
        )
        return made

    return run


def cuda_graph_obstacle(graph_module: torch.fx.GraphModule) -> str:
    """Name of an operator that cannot be recorded into a CUDA graph; empty if there is none."""
    from torch._inductor.utils import get_first_incompatible_cudagraph_node

    node = get_first_incompatible_cudagraph_node(graph_module)
    return "" if node is None else str(node.target)


def cuda_graphs_enter_backward(device: int) -> None:
    """Say that a backward runs outside of CUDA graphs: what the forward's graphs left may be reused afterwards."""
    manager = manager_of(device)
    if manager is not None:
        manager.set_to_running_backward()


class GraphsApart:
    """Trees of recordings beside those of the thread: what was recorded there before is not touched.

    To be used where nothing else records on the device in this thread.

    Args:
        device: number of it.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._container: Any = None

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Record into these trees, and replay what was recorded here before."""
        trees = trees_of_thread()
        containers = trees.get_obj(trees.local, "tree_manager_containers")
        lock = trees.get_obj(trees.local, "tree_manager_locks")[self._device]
        with lock:
            before = containers.pop(self._device, None)
            if self._container is not None:
                containers[self._device] = self._container
        try:
            yield
        finally:
            with lock:
                self._container = containers.pop(self._device, None)
                if before is not None:
                    containers[self._device] = before

    def end(self) -> None:
        """Let go of all of them, memory included; nothing that was recorded here may run afterwards."""
        container, self._container = self._container, None
        if container is not None and container.tree_manager is not None:
            torch.cuda.synchronize(self._device)
            container.tree_manager.shutdown()


@contextlib.contextmanager
def cuda_graphs_apart(device: int) -> Iterator[None]:
    """Record into trees that end with the context; see ``GraphsApart``."""
    apart = GraphsApart(device)
    try:
        with apart.inside():
            yield
    finally:
        apart.end()


def forget_cuda_graphs() -> None:
    """Drop all CUDA graphs of torch's trees, and their memory."""
    take_back_all()
    trees_of_thread().reset_cudagraph_trees()
