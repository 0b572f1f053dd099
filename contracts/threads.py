"""Threads: what a backend needs to know so that all pools of a process share the cores without fighting.

Place: asked by backends when they compile or open a session; answered by torch's setting of the moment.
Rules for a backend, vendors' included:

- its pool gets ``thread_policy().threads`` threads, no more: one region runs at a time, and it may use them all;
- none of its threads spins after a region has returned: the next region's pool needs the cores. Spinning between the
  ops of one region is fine where the pool can be told to stop at the region's end;
- threads are not pinned to cores: torch's pool would share a core with one of them and leave another idle;
- the number of threads is part of ``Backend.fingerprint`` where compiled code depends on it;
- the pool has a name (``Traits.thread_pool``), ``TORCH_POOL`` where kernels run on torch's own threads (OpenMP code
  that is loaded after torch does, since a process has one OpenMP runtime of a name).

Invariants: follows ``torch.set_num_threads``, and so ``OMP_NUM_THREADS``; no setting of other code is changed.
Non-goals: stopping threads of torch's own pool from spinning; see ``mixbackend.host.threads``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

TORCH_POOL = "torch"
"""Name of the pool of torch's own threads."""


@dataclass(frozen=True, slots=True)
class ThreadPolicy:
    """The size of every pool of this process.

    Attributes:
        threads: of each pool that works on a region, the calling thread counted.
    """

    threads: int


def thread_policy() -> ThreadPolicy:
    """The policy of this moment; quick."""
    return ThreadPolicy(torch.get_num_threads())
