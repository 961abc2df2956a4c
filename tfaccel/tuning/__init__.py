"""Searches of hyperparameters: Keras Tuner's algorithms, trials side by side in processes of their own."""
