"""AOTAutograd's cache, which keeps results of compilers, third parties' as well.

Place: a part of the door; see ``contracts.torch_compat``.
An entry is found by Dynamo's graph and torch's settings, whatever compiles; what distinguishes compilers is a tag that
torch lets users set. Results of third parties are kept whole ("bundled"), which is a setting, too. Both are set while
AOTAutograd works and are as the user has them while our compilers do: inductor, which may compile a region then, has
keys of its own, made of the same settings.
To make a key, torch loads inductor's code generators, 0.6 s on two cores, to ask them for passes that devices of others
registered, and Triton's compiler, 0.5 s, to read all its files. Nothing of these is in our results: they are neither
loaded nor asked.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class _Settings:
    """What is set while AOTAutograd looks for results.

    Attributes:
        tag: distinguishes compilers.
        bundled: whether results are kept whole.
    """

    tag: str
    bundled: bool

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        import torch._functorch.config as functorch_config

        compiler_config: Any = torch.compiler.config
        with (
            functorch_config.patch(bundled_autograd_cache=self.bundled),
            compiler_config.patch(cache_key_tag=self.tag),
        ):
            yield

    @classmethod
    def now(cls) -> _Settings:
        import torch._functorch.config as functorch_config

        return cls(str(torch.compiler.config.cache_key_tag), bool(functorch_config.bundled_autograd_cache))


_users: ContextVar[_Settings | None] = ContextVar("mixbackend_users_settings", default=None)
"""The user's settings, while AOTAutograd has ours."""


@dataclass(frozen=True)
class StoredResults:
    """How AOTAutograd's cache keeps results of a compiler.

    Attributes:
        kind: class of what the compilers return, a subclass of ``stored_results.StoredResult``.
        tag: of what compiles: results of others are not found.
    """

    kind: Any
    tag: str

    def compiler(self, function: Any) -> Any:
        """A compiler with results that are kept."""
        from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler

        @functools.wraps(function)
        def compile_as_asked(*arguments: Any) -> Any:
            with settings_as_asked():
                return function(*arguments)

        return SerializableAOTDispatchCompiler(self.kind, compile_as_asked)

    @contextlib.contextmanager
    def sought(self) -> Iterator[None]:
        """Context in which AOTAutograd looks for results, and keeps new ones."""
        _keep_code_generators_apart()
        users = _Settings.now()
        token = _users.set(users)
        try:
            with _Settings(f"{users.tag}{self.tag}", True).applied():
                yield
        finally:
            _users.reset(token)


@contextlib.contextmanager
def settings_as_asked() -> Iterator[None]:
    """Context in which torch's settings are the user's, inside of ``StoredResults.sought``; elsewhere they are."""
    users = _users.get()
    if users is None:
        yield
        return
    token = _users.set(None)
    try:
        with users.applied():
            yield
    finally:
        _users.reset(token)


class KeptUntilStored:
    """Lets AOTAutograd keep a backward, which it compiles at the first backward pass, after our compiler returned.

    What it asks then is a setting, read in the thread that compiles: it is as in ``StoredResults.sought`` from
    ``begin`` to ``end``, the first call of what was compiled.
    """

    def __init__(self) -> None:
        self._setting: Any = None

    def begin(self) -> None:
        """The compiler is about to return."""
        import torch._functorch.config as functorch_config

        if _users.get() is None and not functorch_config.bundled_autograd_cache:
            self._setting = functorch_config.patch(bundled_autograd_cache=True)
            self._setting.__enter__()

    def end(self) -> None:
        """It was stored, or could not be; does nothing the second time."""
        setting, self._setting = self._setting, None
        if setting is not None:
            setting.__exit__(None, None, None)


def no_result_to_store(reason: str) -> Exception:
    """What a result raises when it is to be stored and cannot be: torch goes on without."""
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache

    return BypassAOTAutogradCache(reason)


class _Registered:
    """A table of inductor's as its keys read it: empty while ours are made."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def values(self) -> Any:
        return () if _users.get() else self._table.values()

    def items(self) -> Any:
        return () if _users.get() else self._table.items()


@functools.cache
def _keep_code_generators_apart() -> None:
    """Replace what inductor's module of keys asks its code generators by; see the module's docstring.

    For keys of others it is what it was.
    """
    from torch._inductor import codecache

    names = ("init_backend_registration", "custom_backend_passes", "custom_backend_codegen_configs")
    if not all(hasattr(codecache, name) for name in names):
        return
    register: Callable[[], None] = codecache.init_backend_registration

    def registered() -> None:
        if _users.get() is None:
            register()

    found: Any = codecache
    found.init_backend_registration = registered
    found.custom_backend_passes = _Registered(codecache.custom_backend_passes)
    found.custom_backend_codegen_configs = _Registered(codecache.custom_backend_codegen_configs)
    system = codecache.CacheBase.get_system
    found.CacheBase.get_system = staticmethod(lambda: system() if _users.get() is None else _system())


def _system() -> dict[str, Any]:
    """What graphs depend on of the machine: torch chooses kernels of attention by the GPU as it traces."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"device": {"name": gpu}, "version": {"cuda": torch.version.cuda, "hip": torch.version.hip}, "hash": ""}
