"""Plan: layout, saved set and ranges of sizes, decided with the placement in view."""
