"""What PyTorch sees: the device's registration, XlaTensor, storages and views, random numbers, host copies."""
