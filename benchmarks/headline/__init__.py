"""The suite's models on a GPU, compiled by inductor and by the mixture, beside eager: PyTorch 2's table of 2022."""
