"""One region compiled behind: from its text, in a process of its own, into the artifact store.

Place: ``region_job`` makes the job that ``host.background`` does; ``build`` is what is called there. The compile cache
of the user's process finds the artifact when it is asked for the region, and loads it.
Input: a backend that can (``Traits.compiles_behind``) and a region. Output: an artifact under the very key that the
user's process looks for, or an answer that says why not.
Invariants: no kernel runs, no value is needed, no database is touched. Where the other process is not told the same of
the backend (another version, other threads), nothing is stored.
Non-goals: constants of regions (they are bound in the user's process); backends that were registered by hand.
"""

from __future__ import annotations

from typing import Any

import torch

from mixbackend import registry
from mixbackend.backends.common.side_by_side import limit_side_by_side
from mixbackend.contracts import Backend, Region
from mixbackend.contracts.graph import accelerator
from mixbackend.contracts.region_text import read_region_text
from mixbackend.contracts.torch_compat import Precision, ask_precision, precision_asked
from mixbackend.execute.compile_cache import CompileCache
from mixbackend.host.background import Job
from mixbackend.storage import ArtifactStore, Label

_WORK = "mixbackend.execute.behind_build:build"


class NotTheSameError(Exception):
    """What would be built behind is not what the user's process looks for."""


def region_job(cache: CompileCache, backend: Backend, region: Region, entry: str, urgent: bool = False) -> Job | None:
    """The job that compiles a region behind.

    Args:
        cache: of the user's process.
        backend: who compiles.
        region: what.
        entry: whose calls pay for it.
        urgent: whether half of the cores may be used.

    Returns:
        The job, or ``None`` where this backend or this region is compiled in the user's process alone.
    """
    device = accelerator([*(item.meta for item in region.inputs), *(item.meta for item in region.outputs)])
    if region.is_local or device not in backend.traits().compiles_behind:
        return None
    key = cache.artifact_key(backend, region)
    label = cache.label(backend, region)
    store = cache.store
    data = {
        "backend": backend.name,
        "fingerprint": label.fingerprint,
        "device": label.device,
        "threads": torch.get_num_threads(),
        "precision": precision_asked(),
        "region": region.text,
        "folder": str(store.folder.parent),
        "key": key,
    }
    return Job(_WORK, data, entry, str(store.path(key)), urgent)


def compile_as_for(threads: int, precision: Precision) -> None:
    """Make what the user's process would make, with one thread.

    Args:
        threads: that the code is made for; none of them works here.
        precision: of products, as torch is told in the user's process.
    """
    limit_side_by_side(1)
    torch.set_num_threads(threads)
    ask_precision(precision)


def build(
    backend: str, fingerprint: str, device: str, threads: int, precision: Precision, region: str, folder: str, key: str
) -> dict[str, Any]:
    """Compile and store one region; called in the other process.

    Args:
        backend, fingerprint: who compiles, as the user's process knows it.
        device: for the artifact's label.
        threads: that the code is made for; none of them works here.
        precision: of products, as torch is told in the user's process.
        region: its text.
        folder: of the cache.
        key: of the artifact.

    Raises:
        NotTheSameError: this process would make something else.
        Exception: whatever the backend raises.
    """
    compile_as_for(threads, precision)
    compiler = next(item for item in registry.resolve((backend,), frozenset()) if item.name == backend)
    if compiler.fingerprint() != fingerprint:
        raise NotTheSameError(
            f"backend {backend!r} is {compiler.fingerprint()} behind, and {fingerprint} in the process"
        )
    made = compiler.compile(read_region_text(region))
    if made.artifact is None:
        return {"stored": False, "reason": f"backend {backend!r} stores nothing of this region"}
    return {"stored": ArtifactStore.open(folder).put(key, made.artifact, Label(backend, fingerprint, device))}
