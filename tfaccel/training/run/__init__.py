"""A run of `train`: its session, callbacks, data, checkpoints and run directory."""
