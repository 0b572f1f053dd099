"""C++ with OpenMP and explicit vectors."""
