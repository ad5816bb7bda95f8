"""An error for want of memory, in words: what was asked for, when, of how much, what would fit.

``message`` reads what TensorFlow, XLA, CUDA, cuDNN and NumPy write; ``watched`` knows where a
training is; ``relief`` estimates what would need less; ``explain`` puts it together.
"""
