"""Code for fresh processes that compare trainings on several logical CPU devices with one device.

``without(NAME, ...)`` leaves mends out, so that a test can show what they are for; ``gaps`` trains
each case on one device and on several, and returns the largest difference of weights and of each
series of the history.
"""

COMMON = """
    import json, keras, numpy as np, tensorflow as tf, tfopt
    from tfopt.distribute.mends import repairs_roster as roster
    K, O, L = keras.layers, keras.optimizers, keras.losses
    rng = np.random.default_rng(0)
    x = (1 + rng.normal(size=(69, 6))).astype("float32")
    y = rng.normal(size=(69, 3)).astype("float32")
    even = (x[:64], y[:64])

    def without(*names):
        assert set(names) <= {each.module for each in roster.REPAIRS}
        roster.REPAIRS = tuple(each for each in roster.REPAIRS if each.module not in names)

    def dense(*between):
        return [K.Dense(8, "tanh"), *between, K.Dense(3)]

    def built(layers, optimizer, loss="mse", inputs=6, **compiled):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((inputs,)), *layers()])
        model.compile(optimizer(), loss, **{"jit_compile": False, **compiled})
        return model

    def trained(model, data, **fitted):
        how = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}
        history = model.fit(*data, **how, **fitted)
        return model.get_weights(), history.history

    def largest(one, other):
        # Rounding goes with a number's size. Not Python's max, which passes over what is no number.
        pairs = [(np.asarray(a), b) for a, b in zip(one, other, strict=True)]
        return float(np.max([(np.abs(a - b) / np.maximum(1, np.abs(a))).max() for a, b in pairs]))

    def gaps(cases, count):
        \"\"\"For each case, the difference of weights, and of what was told of the training.\"\"\"
        with tfopt.distribute(logical_cpus=count):
            several = {name: built(*case[0], **case[1]) for name, case in cases.items()}
        found = {}
        for name, (made, compiled, data, fitted) in cases.items():
            ours, told = trained(several[name], data, **fitted)
            plain, wanted = trained(built(*made, **{**compiled, "jit_compile": False}), data, **fitted)
            found[name] = [largest(plain, ours), largest(wanted.values(), told.values())]
        return found
"""
