"""What is asked of the hardware: models, plans, stacks, and their lowering to a Program."""
