"""Models with parts, a ``train_step`` and no ``call``, as Keras's guides write a VAE and a GAN."""

import json

COMMON = """
    import json, keras, numpy as np, tensorflow as tf, tfopt
    from keras import layers, ops
    from tfopt.repairs import roster
    from tfopt.repairs.models_without_call import probe
    x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")

    class Coder(keras.Model):
        def __init__(self, *first):
            super().__init__()
            self.augment = keras.Sequential([layers.Rescaling(0.5), layers.Dropout(0.0)])
            self.encoder = keras.Sequential([*first, layers.Dense(3, "tanh")])
            self.decoder = keras.Sequential([keras.Input((3,)), layers.Dense(4)])
            self.mse = keras.losses.MeanSquaredError()
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = self.mse(data, self.decoder(self.encoder(self.augment(data))))
            weights = self.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            return {"mse": loss}
        def test_step(self, data):
            return {"mse": self.mse(data, self.decoder(self.encoder(data)))}

    def made(*first):
        keras.utils.set_random_seed(0)
        model = Coder(*first)
        model.compile(keras.optimizers.Adam(0.1))
        return model

    def trained(model):
        model.fit(x, batch_size=16, shuffle=False, verbose=0, validation_data=(x,))
        return model.encoder.get_weights() + model.decoder.get_weights()
"""


def test_they_train_as_on_one_device_and_need_built_parts(fresh_python):
    printed = fresh_python(
        COMMON
        + """
    mended, roster.REPAIRS = roster.REPAIRS, tuple(
        each for each in roster.REPAIRS if each.module != "models_without_call")
    told = {}
    with tfopt.distribute(logical_cpus=2) as scope:
        told["probe"] = probe(scope.strategy)
        try:
            trained(made(keras.Input((4,))))
        except RuntimeError as error:
            told["defect"] = str(error)
        roster.REPAIRS = mended
        roster.mend_all(scope.strategy)
        told["mended"] = not probe(scope.strategy)
        several, unbuilt = made(keras.Input((4,))), made()
    try:
        trained(unbuilt)
    except tfopt.errors.UserError as error:
        told["refused"] = str(error)
    gaps = zip(trained(several), trained(made(keras.Input((4,)))), strict=True)
    told["gap"] = float(np.max([np.abs(a - b).max() for a, b in gaps]))
    print(json.dumps(told))
    """
    )
    told = json.loads(printed)
    assert told["probe"] is True
    assert "Unable to automatically build the model" in told["defect"]
    assert told["mended"] is True
    assert told["gap"] < 1e-5
    assert told["refused"].startswith("Coder has no call(), and parts of it are not built yet.")
    assert "Dense" in told["refused"]
