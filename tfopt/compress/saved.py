"""What ``keras.models.load_model`` needs to know for a file with something of tfopt held in it.

Guarantees: importing this registers masks, clusters and the classes of models that save what is
held on them with Keras, and does nothing else. It imports TensorFlow and Keras. A file saved after
``tfopt.strip`` needs nothing of this.
"""

from __future__ import annotations

from tfopt.compress.aware_class import QuantizationAware
from tfopt.compress.constraints import KeptZeros
from tfopt.compress.saved_class import Holding
from tfopt.compress.weight_clusters import WeightClusters
from tfopt.compress.weight_mask import WeightMask

__all__ = ["Holding", "KeptZeros", "QuantizationAware", "WeightClusters", "WeightMask"]
