"""Mend one defect of Keras or TensorFlow under a strategy, a file each."""
