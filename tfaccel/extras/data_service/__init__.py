"""Training batches that are prepared by tf.data service workers, in the order that they have without them."""
