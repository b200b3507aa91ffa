"""Fit the cost models' parameters to the microbenchmarks of one GPU."""
