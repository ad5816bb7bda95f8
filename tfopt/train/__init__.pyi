from .memory_estimate import TrainingMemory as TrainingMemory
from .out_of_memory import OutOfMemory as OutOfMemory
