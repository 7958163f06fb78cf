"""What a training loop says: step, sync, optimizer_step, loaders, checkpoints."""
