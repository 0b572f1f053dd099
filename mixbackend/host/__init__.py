"""Host: the process and the machine: threads, memory, worker processes, garbage collection."""
