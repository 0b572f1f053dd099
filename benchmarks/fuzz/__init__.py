"""Random programs under ``torch.compile``, held against eager: ``python -m mixbackend.benchmarks.fuzz``."""
