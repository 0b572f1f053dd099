"""Select: which of several programs runs: measured, decided, remembered."""
