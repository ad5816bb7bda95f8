"""What workers compare of a model before they train it."""

import keras

from tfopt.distribute.facts import facts_of


def facts_with(activation):
    layers = [keras.layers.RandomCrop(4, 4), keras.layers.Flatten()]
    dense = keras.layers.Dense(3, activation, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers, dense])
    model.compile("sgd", "mse")
    return facts_of("fit", model, {})


def test_layers_are_alike_but_for_what_each_process_draws_and_numbers():
    assert facts_with("tanh") == facts_with("tanh")


def test_another_setting_names_its_layer():
    one, other = facts_with("tanh"), facts_with("relu")
    assert [key for key in one if one[key] != other[key]] == ["layer 4 (Dense)"]


def test_other_weights_of_the_same_shapes_are_another_content():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    before = facts_of("fit", model, {})
    model.set_weights([each + 1 for each in model.get_weights()])
    after = facts_of("fit", model, {})
    assert [key for key in before if before[key] != after[key]] == ["content of the weights"]
