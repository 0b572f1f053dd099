"""Cost: tables of rates, and what ops, calls and replays cost."""
