"""Images with boxes, for detectors."""
