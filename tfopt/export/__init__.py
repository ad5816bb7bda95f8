"""Write a trained model as a file that serves it, run it, and compare it with the model."""
