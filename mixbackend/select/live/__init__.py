"""Live selection: programs of a graph are compared by the user's own calls."""
