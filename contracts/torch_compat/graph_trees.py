"""What holds results in the memory of CUDA graphs, and when torch's trees may write over them.

Place: a part of the door; see ``contracts.torch_compat``. Beside ``cuda_graphs``, which records.
A tree of torch's keeps to what lives as long as one path of it is run. It begins a new path when a compiled function
was entered since and no backward is awaited; results of the old one are overwritten then, even if they are still held.
Invariants: a result counts as free only if no tensor of Python or C++ and no view of its storage is left beside what
torch itself keeps (a bare storage object is not seen). Memory of results that are held outlives the tree.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

_USERS = getattr(torch.Tensor, "_use_count", None)
"""How many hold a tensor's implementation; without it results cannot be told to be free."""


class ResultsOfGraph:
    """Results that a CUDA graph leaves in its own memory, and that share it with nothing else.

    Args:
        node: of torch's tree, just run.
        places: where these results are among those of the function.
        numbers: where they are among those of the node.
        others: where the function's further tensors are.
    """

    def __init__(self, node: Any, places: Sequence[int], numbers: Sequence[int], others: Sequence[int]) -> None:
        self.places = tuple(places)
        self.others = tuple(others)
        self._numbers = tuple(numbers)
        self._node = weakref.ref(node)
        # Torch makes new ones when it makes its tensors anew; these keep the storages' counts readable.
        self._holders = [node.outputs_weakrefs[number] for number in numbers]
        self._storages = [holder.ref.cdata for holder in self._holders]
        self._free: list[list[int]] | None = None

    def are(self, node: Any, results: Sequence[Any]) -> bool:
        """Whether results of a later run are these very tensors."""
        if not self._numbers:
            return bool(node.cached_tensor_outputs)
        kept = self._kept() if node is self._node() else ()
        if not kept:
            return False
        pairs = zip(self.places, self._numbers, strict=True)
        return all(results[place] is kept[number] for place, number in pairs)

    def held(self) -> bool:
        """Whether anything besides torch's tree holds one of them."""
        kept = self._kept()
        if not kept:
            # Without torch's own tensors the storages are alive as long as other tensors on them are.
            return any(map(torch._C._storage_Use_Count, self._storages))
        counts = self._counts([kept[number] for number in self._numbers])
        if counts == self._free:
            return False
        if not all(holder.expired() for holder in self._holders) or any(users > 1 for users in counts[1]):
            return True
        self._free = counts
        return False

    def _kept(self) -> Sequence[Any]:
        """Torch's own tensors, if it has them and they are those that were handed out."""
        node = self._node()
        if node is None or not self._numbers or node.outputs_weakrefs[self._numbers[0]] is not self._holders[0]:
            return ()
        return node.cached_tensor_outputs

    def _counts(self, tensors: list[Any]) -> list[list[int]]:
        assert _USERS is not None, "there are no such results without it"
        users = torch._C._storage_Use_Count
        return [[*map(sys.getrefcount, tensors)], [*map(_USERS, tensors)], [*map(users, self._storages)]]


class GraphTree:
    """One of torch's trees, as far as what it handed out is concerned; made by ``cuda_graph_tree``.

    Attributes:
        handed_out: results in its memory that may be held since a path was begun.
    """

    def __init__(self, manager: Any) -> None:
        self.handed_out: list[ResultsOfGraph] = []
        self._manager = weakref.ref(manager)
        self._known: weakref.WeakKeyDictionary[Any, ResultsOfGraph] = weakref.WeakKeyDictionary()
        self._memory: Any = None
        self._of_path: list[Sequence[Any]] = []
        weakref.finalize(manager, _outlive, self).atexit = False
        _guard(manager, self)

    @property
    def guarded(self) -> bool:
        """Whether no run, even of code of other compilers, writes over results that are held."""
        manager = self._manager()
        return manager is not None and "_run" in vars(manager)

    @property
    def begins_anew(self) -> bool:
        """Whether the next run may begin a new path, and so write over results that live."""
        manager = self._manager()
        return manager is not None and bool(manager.can_start_new_generation())

    @property
    def generation(self) -> int:
        """Differs between calls of compiled functions."""
        manager = self._manager()
        return 0 if manager is None else int(manager.get_curr_generation())

    def latest(self, results: Sequence[Any]) -> ResultsOfGraph | None:
        """Those of these results that the graph that ran last left in its own memory; ``None`` if there are none."""
        manager = self._manager()
        node = None if manager is None or _USERS is None else manager.current_node
        if node is None or not hasattr(node, "unaliased_in_all_paths"):
            return None
        known = self._known.get(node)
        if known is None or not known.are(node, results):
            known = _found(node, results)
            self._known[node] = known
        return known if known.places else None

    def keep(self, results: Sequence[Any]) -> None:
        """Hold results until the path of the graph that left them ends.

        A graph that is recorded behind it may get the memory of what is dead by then, and is not replayed while that
        lives. What C++ alone holds, as an engine that adds up gradients, torch counts as dead, and would write over.
        """
        self._of_path.append(results)

    def hand_out(self, results: ResultsOfGraph) -> None:
        """Remember that a caller has these; keeps their memory until they are taken back."""
        manager = self._manager()
        self._memory = None if manager is None else manager.graph
        if not any(results is other for other in self.handed_out):
            self.handed_out.append(results)

    def take_back(self) -> list[ResultsOfGraph]:
        """Forget results that are not held, and let go of what is kept of an ended path; gives the held ones."""
        if self.begins_anew:
            self._of_path.clear()
        self.handed_out = [results for results in self.handed_out if results.held()]
        if not self.handed_out:
            self._memory = None
        return self.handed_out


_trees: weakref.WeakKeyDictionary[Any, GraphTree] = weakref.WeakKeyDictionary()
_outlived: list[GraphTree] = []
"""Trees that have ended while results were held."""


def trees_of_thread() -> Any:
    """Torch's module of trees, which are there for this thread, or for the one that it runs a backward of.

    Torch keeps them in two places: with the thread, where it looks first, and in a state that its engine hands to
    threads that run backwards and takes back from them. Torch 2.11 makes both for the one thread that imports the
    module; here every thread gets them. Where the two differ the state is right: this thread runs another's backward.
    """
    from torch._inductor import cudagraph_trees as trees

    for name, make in _OF_A_THREAD.items():
        own = vars(trees.local).get(name)
        if torch._C._is_key_in_tls(name):
            given = torch._C._get_obj_in_tls(name)
            _keep_given(given)
            if own is not None and own is not given:
                delattr(trees.local, name)
            continue
        own = make() if own is None else own
        setattr(trees.local, name, own)
        _stash(name, own)
    return trees


_OF_A_THREAD: dict[str, Callable[[], Any]] = {
    "tree_manager_containers": dict,
    "tree_manager_locks": partial(defaultdict, threading.Lock),
}
_referenced: dict[int, Any] = {}
"""What was given references for being stashed, by identity."""


def _stash(name: str, value: Any) -> None:
    """Put a value into the state of this thread, which gives up a reference when it ends: one for each time.

    The state of a thread that runs a backward ends with the backward.
    """
    if not _stash_takes_a_reference():
        _add_reference(value)
    torch._C._stash_obj_in_tls(name, value)


def _keep_given(value: Any) -> None:
    """Add the reference that torch's import of its trees did not take for what it stashed, once."""
    if not _stash_takes_a_reference() and id(value) not in _referenced:
        _add_reference(value)


def _add_reference(value: Any) -> None:
    _referenced[id(value)] = value
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


@cache
def _stash_takes_a_reference() -> bool:
    """Torch 2.11 does not: the object was freed under those that held it when a backward ended that had stashed it."""
    probe: list[Any] = []
    before = sys.getrefcount(probe)
    torch._C._stash_obj_in_tls("mixbackend_probe", probe)
    taken = sys.getrefcount(probe) > before
    if not taken:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(probe))
    return taken


def manager_of(device: int) -> Any:
    """What records for a device in this thread, or in the one that this is a backward of; ``None`` before any."""
    return trees_of_thread().get_manager(device, create_if_none_exists=False)


def cuda_graph_tree(device: int) -> GraphTree | None:
    """Tree that records for a device in this thread, or in the one that this is a backward of; ``None`` before any."""
    manager = manager_of(device)
    return None if manager is None else _tree_of(manager)


def finish_failed_warm_up(device: int) -> bool:
    """Say for a function that raised while a tree warmed it up that it has no results; whether there is such a one.

    Torch looks for as many as were announced when the next function of any compiler begins a new path, and fails there.
    """
    from torch._inductor.cudagraph_trees import CUDAWarmupNode

    manager = manager_of(device)
    node = None if manager is None else manager.current_node
    if not isinstance(node, CUDAWarmupNode):
        return False
    announced, failed = len(node.stack_traces or ()), False
    for references in (node.outputs_weakrefs, node.tensor_weakrefs):
        failed = failed or len(references) < announced
        references.extend([None] * (announced - len(references)))
    return failed


def take_back_all() -> None:
    """Let go of memory that is only kept for results that are no longer held."""
    for tree in [*_trees.values()]:
        tree.take_back()
    _outlived[:] = [tree for tree in _outlived if tree.take_back()]


def _tree_of(manager: Any) -> GraphTree:
    tree = _trees.get(manager)
    if tree is None:
        take_back_all()
        tree = _trees[manager] = GraphTree(manager)
    return tree


def _guard(manager: Any, tree: GraphTree) -> None:
    """Let a tree run functions without graphs, as it does with some itself, where it would write over held results."""
    run, weak = type(manager)._run, weakref.ref(manager)

    def guarded(inputs: list[Any], function: Any) -> Any:
        owner = weak()
        assert owner is not None, "it is running"
        if tree.handed_out and tree.begins_anew and tree.take_back():
            return owner.ids_to_funcs[function].model(inputs)
        return run(owner, inputs, function)

    manager._run = guarded


def _outlive(tree: GraphTree) -> None:
    if tree.take_back():
        _outlived.append(tree)


def _found(node: Any, results: Sequence[Any]) -> ResultsOfGraph:
    """Matches a function's results with those of the node; what shares memory, or is static, is left out."""
    numbers = {
        holder.ref.cdata: number
        for number, (holder, alone) in enumerate(zip(node.outputs_weakrefs, node.unaliased_in_all_paths, strict=True))
        if alone and holder is not None
    }
    sharing: dict[int, list[int]] = {}
    for place, result in enumerate(results):
        if isinstance(result, torch.Tensor) and (storage := result.untyped_storage()._cdata) in numbers:
            sharing.setdefault(numbers[storage], []).append(place)
    kept = node.cached_tensor_outputs
    single = {places[0]: number for number, places in sharing.items() if len(places) == 1}
    found = {
        place: number
        for place, number in single.items()
        if 0 not in results[place].stride() and (not kept or kept[number] is results[place])
    }
    tensors = (place for place, result in enumerate(results) if isinstance(result, torch.Tensor))
    others = [place for place in tensors if place not in found]
    return ResultsOfGraph(node, tuple(found), tuple(found.values()), others)
