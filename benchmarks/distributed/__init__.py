"""Training on several GPUs, or on several gloo processes: eager, inductor and the mixture, a row per case and peer."""
