"""Register what ``keras.models.load_model`` needs for a file with something of tfopt held in it.

Importing this does nothing else. A file saved after ``tfopt.strip`` needs nothing of it.
"""

from __future__ import annotations

from tfopt.compress.aware_class import QuantizationAware
from tfopt.compress.constraints import KeptZeros
from tfopt.compress.saved_class import Holding
from tfopt.compress.weight_clusters import WeightClusters
from tfopt.compress.weight_mask import WeightMask

__all__ = ["Holding", "KeptZeros", "QuantizationAware", "WeightClusters", "WeightMask"]
