"""tf_keras (Keras 2) models, by tfmot."""
