"""What this machine and its backends can do, in seconds: measured once and kept.

Place: between the backends and the partitioner's cost model.
"""
