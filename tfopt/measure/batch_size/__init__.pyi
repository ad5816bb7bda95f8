from .found import BatchSizes as BatchSizes
