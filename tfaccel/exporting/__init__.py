"""Export of models for deployment, and prediction on files."""
