"""What turns kernels into something that runs."""
