"""Several steps in one call under several replicas: the weights, logs and steps of one device."""


import pytest

from tfopt.distribute.mends.several_steps import probe
rng = np.random.default_rng(0)
x = rng.normal(size=(84, 6)).astype("float32")
y = x.sum(axis=1, keepdims=True)

class Told(keras.callbacks.Callback):
    def __init__(self):
        self.steps, self.losses = [], []
    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(batch)
        self.losses.append(logs["loss"])

def trained(scope=contextlib.nullcontext(), each=3, unrolled=1, data=None, **settings):
    keras.utils.set_random_seed(0)
    with scope:
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"], jit_compile=False,
                      steps_per_execution=each, **settings)
    model.unrolled_steps_per_execution = unrolled
    told = Told()
    arguments = {"x": x, "y": y, "batch_size": 12} if data is None else {"x": data()}
    history = model.fit(**arguments, epochs=2, shuffle=False, verbose=0, callbacks=[told],
                        validation_data=(x[:24], y[:24]), validation_batch_size=8)
    return model, {
        "weights": model.get_weights(),
        "history": list(history.history.values()),
        "losses": told.losses,
        "steps": [told.steps, int(model.optimizer.iterations.numpy())],
        "evaluated": model.evaluate(x[:72], y[:72], batch_size=24, verbose=0),
        "predicted": model.predict(x, batch_size=24, verbose=0),
    }

def gap(one, other):
    flat = lambda values: [np.asarray(v, "float64") for v in tf.nest.flatten(values)]
    return {name: float(np.max([np.abs(a - b).max() for a, b in zip(flat(one[name]), flat(other[name]), strict=True)]))
            for name in one}

def replicas(count):
    cpu = tf.config.list_physical_devices("CPU")[0]
    settings = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(cpu, settings)
    return tf.distribute.MirroredStrategy([f"CPU:{n}" for n in range(count)])


def without_the_mend_the_first_execution_fai():
    strategy = replicas(2)
    print(probe(strategy))
    try: trained(strategy.scope())
    except tf.errors.InvalidArgumentError as error: print("placeholder" in str(error))


def test_without_the_mend_the_first_execution_fails(replicas):
    printed = replicas(without_the_mend_the_first_execution_fai)
    assert printed.split() == ["True", "True"]


CASES = {
    2: '[{}, {"data": unknown_length, "each": 4, "unrolled": 3}, {"run_eagerly": True, "each": 8}]',
    4: '[{"each": 16}]',
}


def with_it_all_is_as_on_one_device(count):
    def unknown_length():
        batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(12)
        return batches.filter(lambda *_: True)

    with tfopt.distribute(logical_cpus=count) as scope:
        print(probe(scope.strategy))
    entered = lambda: tfopt.distribute(logical_cpus=count)
    import warnings
    warnings.simplefilter("ignore")  # Keras warns of every end that it did not know
    for case in «CASES[count]»:
        one, several = trained(**case)[1], trained(entered(), **case)[1]
        print(json.dumps(gap(one, several)), json.dumps(several["steps"]))
    model, _ = trained(entered())
    print(json.dumps(model.train_on_batch(x[:12], y[:12])))


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_with_it_all_is_as_on_one_device(replicas, count):
    printed = replicas(with_it_all_is_as_on_one_device, count)
    probed, *told, _ = printed.splitlines()
    assert probed == "False"
    assert len(told) == (3 if count == 2 else 1)
    for line in told:
        gaps, steps = line.split("} ")
        gaps = json.loads(gaps + "}")
        assert gaps.pop("steps") == 0
        assert json.loads(steps)[1] == 14
        # A step's logs are a mean over the replicas' own means so far.
        assert all(each < 2e-5 for each in gaps.values()), gaps
