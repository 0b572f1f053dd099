"""CUDA graphs of placed graphs: which regions are recorded together, and what replays them."""

from mixbackend.execute.cuda_graphs.eager_splitting import split_eager_regions
from mixbackend.execute.cuda_graphs.graph_segments import device_of
from mixbackend.execute.cuda_graphs.recorded import RecordedGraph, RecordingSource

__all__ = ["RecordedGraph", "RecordingSource", "device_of", "split_eager_regions"]
