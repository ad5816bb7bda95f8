"""Channels are removed until a measured latency is met: the one of LiteRT, which serves."""

import keras
import pytest

from tfopt import footprint
from tfopt.compress.remove_channels import carry_out


@pytest.mark.slow
def test_a_latency_can_be_the_target():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(48, 3, activation="relu"),
            layers.Conv2D(48, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(4),
        ]
    )
    measured = {}

    def latency_ms(candidate):
        assert candidate.count_params() not in measured, "the same model was measured twice"
        found = footprint({"candidate": candidate}, turns=5).rows[0].latency_ms
        measured[candidate.count_params()] = found
        return found

    done = carry_out(model, 0.5, target=latency_ms)
    whole, small = model.count_params(), done.model.count_params()
    assert small < whole
    assert measured[small] <= 0.5 * measured[whole]
