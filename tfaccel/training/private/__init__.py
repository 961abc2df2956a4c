"""The private parts of Keras and TensorFlow that training needs; each file warns of untested versions."""
