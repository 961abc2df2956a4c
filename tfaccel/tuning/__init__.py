"""Hyperparameter search with Keras Tuner's or Optuna's algorithms; each trial runs in a worker process."""
