"""Arrays as a ``PyDataset``, for the tests of everything that takes what ``fit`` takes."""

import keras


class Batches(keras.utils.PyDataset):
    """The arrays in order, in batches of ``size``."""

    def __init__(self, *arrays, size, **settings):
        super().__init__(**settings)
        self.arrays, self.size = arrays, size

    def __len__(self):
        return -(-len(self.arrays[0]) // self.size)

    def __getitem__(self, index):
        rows = slice(index * self.size, (index + 1) * self.size)
        return tuple(array[rows] for array in self.arrays)
