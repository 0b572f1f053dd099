"""Data: rates of machines, a file for each family of them (``cost.families``); ``cost.rate_tables`` is the format."""
