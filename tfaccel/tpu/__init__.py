"""Whether a train step can run on a TPU, said before there is one."""
