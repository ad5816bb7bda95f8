"""Files with something of tfopt held in them, loaded in a process that has only this import."""

import re
import textwrap

import keras
import pytest
from keras import layers

import tfopt
from tfopt import UserError
from tfopt.compress import constraints

OWN = """
    import keras

    @keras.saving.register_keras_serializable("here")
    class Here(keras.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.inner = keras.layers.Dense(6)

        def call(self, x):
            return self.inner(x)
"""


def plain():
    return keras.Sequential([keras.Input((8,)), layers.Dense(6), layers.Dense(6)])


def test_one_import_loads_whatever_is_held(tmp_path, fresh_python):
    names = {}
    exec(textwrap.dedent(OWN), names)
    own = names["Here"]()
    own(keras.ops.ones((2, 8)))
    pruned, clustered = tfopt.prune(plain(), 0.5), tfopt.cluster(plain(), 4)
    held = [tfopt.quantize_aware(pruned), clustered, tfopt.prune(own, 0.5)]
    paths = [f"{tmp_path}/{number}.keras" for number in range(3)]
    for model, path in zip(held, paths, strict=True):
        model.save(path)
    # tfopt comes before Keras, and so registers nothing by itself.
    fresh_python(
        "    import tfopt\n"
        + OWN
        + f"""
    paths = {paths!r}
    for path in paths:
        try:
            keras.models.load_model(path)
        except TypeError:
            pass
        else:
            raise AssertionError("this test proves nothing: no import was needed")
    import tfopt.compress.saved
    pruned, clustered, own = map(keras.models.load_model, paths)
    assert tfopt.compress.quantization_report(pruned)
    assert tfopt.compress.clustering_report(clustered)[0].clusters == 4
    assert tfopt.compress.pruning_report(own)[0].target == 0.5
    assert type(tfopt.strip(own)) is Here
    """
    )


@pytest.mark.parametrize("held", [lambda m: tfopt.prune(m, 0.5), tfopt.quantize_aware])
def test_saving_what_is_held_says_once_what_opens_the_file(held, tmp_path, caplog):
    say_once = constraints._warn_once
    say_once.cache_clear()
    model = held(plain())
    keras.models.clone_model(model)
    assert not caplog.records
    model.save(tmp_path / "model.keras")
    model.save(tmp_path / "model.keras")
    (record,) = caplog.records
    assert "tfopt.load(path)" in record.message
    assert "tfopt.strip(model)" in record.message
    say_once.cache_clear()
    tfopt.strip(model).save(tmp_path / "model.keras")
    assert len(caplog.records) == 1


def test_functions_take_the_path_of_a_saved_model(tmp_path):
    path = tmp_path / "model.keras"
    model = plain()
    model.compile("sgd", "mse")
    model.save(path)
    made = [
        tfopt.prune(path, 0.5),
        tfopt.cluster(str(path), 4),
        tfopt.quantize_aware(path),
        tfopt.remove_channels(path, 0.5),
        tfopt.strip(path),
        tfopt.load(path),
    ]
    assert all(isinstance(each, keras.Model) for each in made)
    assert tfopt.quantize(path, precision="dynamic").kib > 0
    assert tfopt.footprint({"saved": path}, turns=5).rows[0].parameters == model.count_params()
    nearest = re.escape(f"did you mean {path}?")
    with pytest.raises(UserError, match=rf"modle.keras does not exist.(.|\n)*{nearest}"):
        tfopt.prune(path.with_name("modle.keras"), 0.5)


@pytest.mark.parametrize("given", [None, "x", keras.Model])
def test_what_is_no_model_is_refused(given):
    reports = tfopt.compress.pruning_report, tfopt.compress.clustering_report
    for function in (tfopt.strip, tfopt.compress.hold, *reports):
        with pytest.raises(UserError, match=r"must be a Keras 3 model|x does not exist"):
            function(given)
