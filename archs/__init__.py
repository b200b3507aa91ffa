"""What the hardware can do: descriptors of GPUs and systems, and where each number comes from."""
