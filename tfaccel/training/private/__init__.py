"""The private API of Keras and TensorFlow that training needs (see `private_api`)."""
