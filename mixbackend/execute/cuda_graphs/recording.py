"""Recording: segments of a graph while they become CUDA graphs, and when recording one fails.

Place: below ``recorded``. Input: a segment as a CUDA graph of torch's, and the same without. Output: what runs it.
Invariants: after a failure torch is not asked again, and the call is answered without a graph, once the error and the
memory that it holds are gone, from what inputs held before; where copies of what is written would take too much memory,
the call raises.
A segment with collectives runs once for each call of the user, on every rank, whatever fails: other ranks take part in
each run. Torch's trees keep to that: to warm up and to run beside the tree is to run once, and a recording runs nothing
until it is replayed. So after a failure the segment is run without a graph only if it was not run before; otherwise the
error is the caller's. While it runs, rather than being recorded, regions that fail are answered by eager one by one,
as without graphs, so that error is one that eager raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mixbackend.contracts import RegionRunError
from mixbackend.execute.run_function import Run
from mixbackend.execute.state_restore import Changes, RepeatedCall

Emit = Callable[[str, str], None]
"""Takes the id of a region (empty for the whole graph) and what happened."""

_RECORDED_AFTER = 2
"""Calls of a segment until it is replayed: one to warm up, one to record."""

_MOST_COPIED = 1 << 30
"""Bytes of the inputs that a segment writes into, for copies of them to be made while it warms up."""


class Recording:
    """Counts the segments of one set of sizes, and tells what memory their graphs took."""

    def __init__(self, segments: int, device: int, emit: Emit) -> None:
        self._left = segments
        self._device = device
        self._emit = emit
        self._before = torch.cuda.memory_reserved(device)

    def done(self) -> None:
        """One more segment is recorded."""
        self._left -= 1
        if self._left == 0:
            taken = max(0, torch.cuda.memory_reserved(self._device) - self._before)
            self._emit("", f"recorded; torch holds {taken / 2**20:.0f} MiB more on the GPU than before")


class RegionsOnce:
    """The regions of a segment with collectives, as a tree of torch's calls them.

    Args:
        bare: runs them for a recording: what a region raises is raised.
        guarded: runs them otherwise: failing regions are answered by eager.

    Attributes:
        ran, recorded: whether they were run, or recorded, since ``begin``.
    """

    def __init__(self, bare: Run, guarded: Run) -> None:
        self.bare = bare
        self.guarded = guarded
        self.begin()

    def begin(self) -> None:
        """A call of the user begins."""
        self.ran = self.recorded = False

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run or record them; empties the list."""
        if torch.cuda.is_current_stream_capturing():
            self.recorded = True
            return self.bare(inputs)
        self.ran = True
        return self.guarded(inputs)


class SegmentOnce:
    """A segment with collectives, as a CUDA graph.

    Args:
        graph: see ``cuda_graph_recorded``.
        regions: what it calls.
        guarded: the same without a graph, where failing regions are answered by eager.
        on_recorded: called when only replays come from now on, but where weights have moved.
        on_failure: called with what recording raised.
        on_graph: called whenever it was recorded.
    """

    def __init__(
        self,
        graph: Run,
        regions: RegionsOnce,
        guarded: Run,
        on_recorded: Callable[[], None],
        on_failure: Callable[[Exception], None],
        on_graph: Callable[[], None],
    ) -> None:
        self._graph: Run | None = graph
        self._regions = regions
        self._guarded = guarded
        self._on_recorded = on_recorded
        self._on_failure = on_failure
        self._on_graph = on_graph
        self._calls = 0

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the segment; empties the list."""
        graph = self._graph
        if graph is None:
            return self._guarded(inputs)
        kept = list(inputs)
        self._regions.begin()
        try:
            results = graph(inputs)
        except Exception as error:
            # The graph is not asked again: torch may be left in the middle of a recording.
            self._graph = None
            self._on_failure(error)
            if self._regions.ran:
                raise
        else:
            if self._regions.recorded:
                self._on_graph()
            if self._calls < _RECORDED_AFTER:
                self._calls += 1
                if self._calls == _RECORDED_AFTER:
                    self._on_recorded()
            return results
        # Only now has the error let go of the memory that the recording had.
        return self._guarded(kept)


class RecordedSegment:
    """A segment without collectives while it becomes a CUDA graph.

    Args:
        graph: see ``cuda_graph_recorded``.
        guarded: the same without a graph, where failing regions are answered by eager.
        on_recorded: called when only replays come from now on.
        on_failure: called with what recording raised.
        written: names of the inputs that the segment writes into, by position.
    """

    def __init__(
        self,
        graph: Run,
        guarded: Run,
        on_recorded: Callable[[], None],
        on_failure: Callable[[Exception], None],
        written: Mapping[int, str] | None = None,
    ) -> None:
        self._graph = graph
        self._guarded = guarded
        self._on_recorded = on_recorded
        self._on_failure = on_failure
        self._written = dict(written or {})
        self._calls = 0
        self._run: Run = self._first_calls

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the segment; empties the list."""
        return self._run(inputs)

    def _first_calls(self, inputs: list[Any]) -> Sequence[Any]:
        kept = list(inputs)
        # Warming up runs the segment; recording it does not.
        written = self._written if self._calls == 0 else {}
        fits = sum(inputs[place].nbytes for place in written) <= _MOST_COPIED
        again = RepeatedCall(kept, Changes(tuple(written))) if fits else None
        try:
            results = self._graph(inputs)
        except Exception as error:
            # The graph is not asked again: torch may be left in the middle of a recording.
            self._run = self._guarded
            self._on_failure(error)
            if again is None:
                names = ", ".join(written.values())
                raise RegionRunError(
                    what=f"a CUDA graph failed before it was recorded, and may have written into {names}: {error}",
                    where="the first call that was to be recorded",
                    hint="restore these tensors; later calls run without this graph",
                ) from error
        else:
            self._calls += 1
            if self._calls >= _RECORDED_AFTER:
                self._run = self._graph
                self._on_recorded()
            return results
        # Only now has the error let go of the memory that the recording had.
        return again.by(self._guarded)()
