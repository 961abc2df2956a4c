"""Searches of hyperparameters: Keras Tuner's algorithms or Optuna's, trials side by side in their own processes."""
