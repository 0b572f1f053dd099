"""The code of one compiled region: what all executors that run it share.

Place: made by the compile cache where a region is compiled or loaded; equal layers, copies of a model and graphs that
are compiled again run the same object. Input: what the backend compiled, and what earlier processes confirmed of it.
Output: the lock of code that must not run twice at once; how deeply a call is to be checked; word to all executors when
the code has failed.
Invariants: all runs of the same code hold the same lock, whatever executor, graph or binding they come by. A binding is
code of its own: it has its own lock, and is checked when it is first run. What was checked counts for sizes of one
class (``region_sizes``).
Non-goals: how a call is checked, see ``checked_call``.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from mixbackend.backends.common import forks
from mixbackend.contracts import Backend, CompiledRegion, ValueMeta
from mixbackend.contracts.numerics import Accuracy
from mixbackend.contracts.region import RunFunction
from mixbackend.execute.confirmations import Confirmations
from mixbackend.execute.region_sizes import Sizes

CONFIRMED_BY = 3
"""So many processes check a region at its first calls; later ones take it as right."""
MOST_UNPROVED = 8
"""So many calls that prove little are checked, of one binding at sizes of one class; then it is left as it is, in this
process, and the next one begins again."""

Depth = Literal["none", "rows", "whole"]
"""How a call is checked: not, by some rows of one output, or all of it against float64."""


class User(Protocol):
    """An executor, as the code knows it."""

    def retire(self, text: str) -> None:
        """Do not run the code any more: another executor found it wrong, or saw it fail."""
        ...


@dataclass
class Checks:
    """What was checked of one piece of code: of a region without bound constants, or of one binding.

    Attributes:
        bound: whether it is a binding.
        later: whether its executor ran another binding before: the region was checked with that one.
        passed: classes of sizes at which nothing is checked any more.
        unproved: how many checked calls proved little, by class.
    """

    bound: bool = False
    later: bool = False
    passed: set[Sizes] = field(default_factory=set)
    unproved: Counter[Sizes] = field(default_factory=Counter)


class RegionCode:
    """See the module's docstring.

    Args:
        backend: that made it.
        compiled: what it made.
        confirmations: of earlier processes; ``None`` if nothing is remembered of this region.
        inputs: metas of the region that it was made for: its preconditions are in the symbols of these; ``None`` where
            it is used by this region alone.
    """

    def __init__(
        self,
        backend: Backend,
        compiled: CompiledRegion,
        confirmations: Confirmations | None = None,
        inputs: tuple[ValueMeta, ...] | None = None,
    ) -> None:
        self.backend = backend
        self.compiled = compiled
        self.inputs = inputs
        self.unbound = Checks()
        self.accuracy: Accuracy | None = None
        """The worst that was seen in this process."""
        self._confirmations = confirmations
        self._confirmed: dict[Sizes, bool] = {}
        self._checked: set[Sizes] = set()
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = forks.lock()
        self._run_lock = forks.long_lock()
        self._failure = ""

    def serialised(self, run: RunFunction, around: Callable[[RunFunction], RunFunction]) -> RunFunction:
        """Code that waits for its turn where it must not run twice at once.

        Args:
            run: of the region or of a binding, as the backend gave it: this is what the lock belongs to.
            around: what else is done in every call, inside the lock.
        """
        inner = around(run)
        if self.backend.traits().reentrant:
            return inner
        lock = _locks.of(run, self._run_lock)

        def locked(inputs: Sequence[Any]) -> Sequence[Any]:
            with lock:
                return inner(inputs)

        return locked

    def depth(self, checks: Checks, sizes: Sizes) -> Depth:
        """How the next call of some code is to be checked.

        The first one of every binding is, at sizes of every class: whole until enough processes have confirmed the
        region; by some rows where they have, or where this process checked the same code whole with other constants, be
        it of an equal layer.
        Without constants inside, all executors run the same code, which is checked once.
        """
        if sizes in checks.passed:
            return "none"
        if self._is_confirmed(sizes):
            return "rows" if checks.bound else "none"
        return "rows" if checks.bound and sizes in self._checked else "whole"

    def found_right(self, checks: Checks, sizes: Sizes, depth: Depth, accuracy: Accuracy | None = None) -> None:
        """A checked call was right, and proved it."""
        checks.passed.add(sizes)
        if depth != "whole":
            return
        with self._lock:
            self.accuracy = accuracy.worse(self.accuracy) if accuracy is not None else self.accuracy
            first = sizes not in self._checked
            self._checked.add(sizes)
        if first and self._confirmations is not None:
            self._confirmations.add(_text(sizes))

    def found_unproved(self, checks: Checks, sizes: Sizes) -> bool:
        """A checked call proved little; whether that was the last that is checked."""
        checks.unproved[sizes] += 1
        last = checks.unproved[sizes] >= MOST_UNPROVED
        if last:
            checks.passed.add(sizes)
        return last

    def used_by(self, user: User) -> None:
        """An executor runs the code from now on; it is told when the code has failed, now if it has."""
        with self._lock:
            self._users.add(user)
            failure = self._failure
        if failure:
            user.retire(failure)

    def fail(self, text: str, user: User) -> bool:
        """The code has failed in an executor: no other executor runs it any more; whether this is news."""
        with self._lock:
            first = not self._failure
            self._failure = self._failure or text
            others = [item for item in self._users if item is not user] if first else []
        for other in others:
            other.retire(text)
        return first

    def _is_confirmed(self, sizes: Sizes) -> bool:
        """By other processes, when this one began: what it finds itself makes no difference to its own checks."""
        known = self._confirmed.get(sizes)
        if known is None:
            known = self._confirmations is not None and self._confirmations.count(_text(sizes)) >= CONFIRMED_BY
            self._confirmed[sizes] = known
        return known


class _Locks:
    """One lock for each piece of code, found by the object that is called."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._known: weakref.WeakKeyDictionary[Any, threading.Lock] = weakref.WeakKeyDictionary()

    def of(self, run: RunFunction, otherwise: threading.Lock) -> threading.Lock:
        """The lock of some code; ``otherwise`` where the object cannot be told from others of its kind."""
        # A method is made anew whenever it is asked for; what it belongs to is not.
        owner = run.__self__ if isinstance(run, types.MethodType) else run
        try:
            with self._lock:
                return self._known.setdefault(owner, forks.long_lock())
        except TypeError:
            return otherwise


_locks = _Locks()
"""Of all compile caches: a backend may hand one piece of code to several of them."""


def _text(sizes: Sizes) -> str:
    return " ".join(map(str, sizes))
