"""CUDA graphs of placed graphs: which regions are recorded together, and what replays them."""

from mixbackend.execute.cuda_graphs.apart import set_apart
from mixbackend.execute.cuda_graphs.pieces import device_of
from mixbackend.execute.cuda_graphs.recorded import RecordedGraph, Subject

__all__ = ["RecordedGraph", "Subject", "device_of", "set_apart"]
