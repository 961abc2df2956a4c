"""Images with bounding boxes, for object detection."""
