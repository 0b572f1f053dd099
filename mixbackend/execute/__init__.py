"""Execute: stitched functions and their regions while they run: checks, repairs, weights, CUDA graphs."""
