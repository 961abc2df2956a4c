"""The TensorFlow Model Optimization Toolkit: Keras 3 models translated to tf_keras and trained in a child process."""
