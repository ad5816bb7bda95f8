"""What call() keeps on the model is a replica's own, where losses make replicas take turns."""

import json

from repairs.own_steps import COMMON

CASES = """
    class Keeps(Own):
        def call(self, inputs, training=None):
            outputs = super().call(inputs, training=training)
            self.kept, self.several = tf.reduce_mean(tf.square(outputs)), [tf.reduce_sum(outputs)]
            return outputs
        def loss_of(self, inputs, wanted):
            loss = self.compute_loss(inputs, wanted, self(inputs, training=True))
            return loss + 0.3 * self.kept + 0.01 * self.several[0]

    CASES = {"kept by the model": (Keeps, {})}
    compiled = made
    def made(kind, **changed):
        model = compiled(kind, **changed)
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        return model
"""


def test_without_the_mend_it_is_the_last_replicas(fresh_python):
    printed = fresh_python(
        COMMON
        + CASES
        + """
    from tfopt.distribute.mends import repairs_roster as roster
    roster.REPAIRS = tuple(each for each in roster.REPAIRS if each.module != "own_attributes")
    print(json.dumps(compared(CASES)))
    """
    )
    for gap, _ in json.loads(printed).values():
        assert gap > 1e-3


def test_with_it_the_weights_are_those_of_one_device(fresh_python):
    printed = fresh_python(COMMON + CASES + "\n    print(json.dumps(compared(CASES)))")
    for gap, told in json.loads(printed).values():
        assert gap < 1e-6
        assert told == []
