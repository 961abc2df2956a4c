"""What a training history and simple baselines say about a trained model."""
