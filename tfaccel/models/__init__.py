"""Parts of models that recipes share."""
