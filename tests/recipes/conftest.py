"""What the tests of several recipes begin from."""

import numpy as np
import pytest


@pytest.fixture
def image_folder(tmp_path):
    """Ten dark and ten light images, a folder for each."""
    import tensorflow as tf

    for label, shade in (("dark", 40), ("light", 200)):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(10):
            pixels = tf.io.encode_png(np.full((20, 24, 3), shade + number, np.uint8)).numpy()
            (tmp_path / "images" / label / f"{number}.png").write_bytes(pixels)
    return str(tmp_path / "images")
