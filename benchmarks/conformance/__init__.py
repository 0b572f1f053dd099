"""What others wrote about ``torch.compile``, run through default ``auto()``: operator samples, suites, clients."""
