"""Files with something of tfopt held in them, loaded in a process that has only this import."""

import keras
import pytest
from keras import layers

import tfopt


def held_by(*steps):
    model = keras.Sequential([keras.Input((8,)), layers.Dense(6), layers.Dense(6)])
    for step in steps:
        step(model)
    return model


def test_tfopt_imported_after_keras_loads_whatever_is_held(tmp_path, fresh_python):
    path = tmp_path / "held.keras"
    held_by(lambda model: tfopt.prune(model, 0.5), tfopt.quantize_aware).save(path)
    fresh_python(
        f"""
        import keras, tfopt
        model = keras.models.load_model({str(path)!r})
        assert tfopt.compress.pruning_report(model)[0].target == 0.5
        """
    )


@pytest.mark.parametrize(
    "steps",
    [
        (lambda model: tfopt.prune(model, 0.5), tfopt.quantize_aware),
        (lambda model: tfopt.cluster(model, 4), tfopt.quantize_aware),
    ],
    ids=["pruned", "clustered"],
)
def test_one_import_loads_whatever_is_held(steps, tmp_path, fresh_python):
    path = tmp_path / "held.keras"
    held_by(*steps).save(path)
    load = f"keras.models.load_model({str(path)!r})"
    fresh_python(
        f"""
        import tfopt, keras
        try:
            {load}
        except TypeError:
            pass
        else:
            raise AssertionError("this test proves nothing: no import was needed")
        import tfopt.compress.saved
        model = {load}
        assert tfopt.compress.quantization_report(model)
        tfopt.strip(model)
        """
    )
