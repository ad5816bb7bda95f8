"""Gradients that a train_step takes in other ways than by ``tape.gradient(loss, variables)``."""

import types

import keras
import pytest
import tensorflow as tf

from .own_steps import Own, compared


def values(self):
    return [v.value for v in self.trainable_variables]


class Symbolic(Own):
    def taken(self, x, y):
        return tf.gradients(self.loss_of(x, y), values(self))


class Jacobian(Own):
    how = types.MappingProxyType({})

    def taken(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
        return tape.jacobian(loss, values(self), **self.how)


class Looped(Jacobian):
    how = types.MappingProxyType({"experimental_use_pfor": False})


class Read(Own):
    def taken(self, x, y):
        w = [tf.convert_to_tensor(v) for v in self.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = tf.reduce_mean(tf.square(tf.tanh(x @ w[0] + w[1]) @ w[2] + w[3] - y))
        return tape.gradient(loss, w)


class Stateless(Own):
    def taken(self, x, y):
        there = [tf.convert_to_tensor(v) for v in self.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(there)
            pairs = list(zip(self.trainable_variables, there, strict=True))
            with keras.StatelessScope(state_mapping=pairs):
                loss = self.loss_of(x, y)
        return tape.gradient(loss, there)


class Factor(Own):
    def taken(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
        return tape.gradient(loss, values(self), output_gradients=tf.constant(0.5))


class Persistent(Own):
    def taken(self, x, y):
        with tf.GradientTape(persistent=True) as tape:
            loss = self.loss_of(x, y)
            grads = tape.gradient(loss, self.trainable_variables)
        return tf.clip_by_global_norm(grads, 0.1)[0]


class Adversarial(Own):
    def taken(self, x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = self.loss_of(x, y)
        moved = x + 2.0 * tape.gradient(loss, x)
        with tf.GradientTape() as tape:
            loss = self.loss_of(moved, y)
        return tape.gradient(loss, self.trainable_variables)


class Penalty(Own):
    def taken(self, x, y):
        weights = self.trainable_variables
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_mean(self(x))
            slope = tape.gradient(loss, x)
            loss = self.loss_of(x, y) + 50.0 * tf.reduce_sum(tf.square(slope))
        return outer.gradient(loss, weights)


class Maml(Own):
    def taken(self, x, y):
        weights = self.trainable_variables
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                loss = self.loss_of(x, y)
            w = [v - 0.1 * g for v, g in zip(weights, tape.gradient(loss, weights), strict=True)]
            loss = tf.reduce_mean(tf.square(tf.tanh(x @ w[0] + w[1]) @ w[2] + w[3] - y))
        return outer.gradient(loss, weights)


class Hessian(Own):
    def taken(self, x, y):
        weights = self.trainable_variables
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                loss = self.loss_of(x, y)
            grads = tape.gradient(loss, weights)
            total = tf.add_n([tf.reduce_sum(g) for g in grads])
        second = outer.gradient(total, weights, unconnected_gradients="zero")
        return [g - 0.05 * h for g, h in zip(grads, second, strict=True)]


class Inputs(Own):
    def taken(self, x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = self.loss_of(x, y)
        grads, by = tape.gradient(loss, [values(self), x])
        with tf.GradientTape() as tape:
            loss = self.loss_of(x + by, y)
        return [a + b for a, b in zip(grads, tape.gradient(loss, values(self)), strict=True)]


class Nested(Own):
    def taken(self, x, y):
        @tf.function
        def inside(x, y):
            with tf.GradientTape() as tape:
                loss = self.loss_of(x, y)
            return tape.gradient(loss, values(self))

        return inside(x, y)


class Condition(Own):
    def taken(self, x, y):
        def inside():
            with tf.GradientTape() as tape:
                loss = self.loss_of(x, y)
            return tape.gradient(loss, values(self))

        return tf.cond(tf.reduce_sum(x) > -1e9, inside, inside)


class Loop(Own):
    def taken(self, x, y):
        def body(n, *sums):
            with tf.GradientTape() as tape:
                loss = self.loss_of(x, y)
            return n + 1, *[
                a + b for a, b in zip(sums, tape.gradient(loss, values(self)), strict=True)
            ]

        zeros = [tf.zeros(v.shape) for v in self.trainable_variables]
        return list(tf.while_loop(lambda n, *_: n < 2, body, (0, *zeros))[1:])


class Forward(Own):
    def taken(self, x, y):
        kernel = values(self)[0]
        with tf.autodiff.ForwardAccumulator(kernel, tf.ones_like(kernel)) as along:
            with tf.GradientTape() as tape:
                loss = self.loss_of(x, y)
            grads = tape.gradient(loss, values(self))
        return [grads[0] + 0.1 * along.jvp(grads[0]), *grads[1:]]


class Examples(Own):
    exchanged = False

    def taken(self, x, y):
        grads = self.of_each(x, y)
        grads = [tf.reduce_sum(tf.clip_by_value(g, -0.1, 0.1), 0) / 16 for g in grads]
        if self.exchanged:
            grads = tf.distribute.get_replica_context().all_reduce("sum", grads)
        return grads

    def of_each(self, x, y):
        with tf.GradientTape() as tape:
            losses = tf.reduce_mean(tf.square(self(x) - y), axis=1)
        return tape.jacobian(losses, values(self))


class Mapped(Examples):
    def of_each(self, x, y):
        def one(pair):
            with tf.GradientTape() as tape:
                loss = self.loss_of(pair[0][None], pair[1][None])
            return tape.gradient(loss, values(self))

        return tf.map_fn(one, (x, y), fn_output_signature=[tf.float32] * 4)


def train_step(self, data):
    self.optimizer.apply(self.taken(*data), self.trainable_variables)
    return {"done": 1.0}


def taken_by(*kinds, **more):
    return compared({each.__name__: (each, {"train_step": train_step, **more}) for each in kinds})


@pytest.mark.parametrize(
    "kinds",
    [
        (Symbolic, Adversarial, Penalty),
        pytest.param(
            (Read, Maml, Jacobian, Stateless, Factor, Persistent, Hessian, Inputs, Looped),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_they_are_of_the_whole_batch(replicas, kinds):
    found = replicas(taken_by, *kinds)
    assert all(apart < 1e-5 for apart, _ in found.values()), found
    assert all(told == [] for _, told in found.values()), found


@pytest.mark.parametrize(
    ("kinds", "where"),
    [
        ((Nested,), "inside a tf.function"),
        pytest.param((Condition, Loop), "inside a tf.function", marks=pytest.mark.slow),
        pytest.param((Forward,), "under a ForwardAccumulator", marks=pytest.mark.slow),
    ],
)
def test_where_replicas_cannot_exchange_they_are_parts_and_that_is_said(replicas, kinds, where):
    found = replicas(taken_by, *kinds)
    assert all(apart < 1e-5 for apart, _ in found.values()), found
    (told,) = (each for _, told in found.values() for each in told)  # once for the class
    assert told.startswith(f"Own.train_step takes a gradient {where}")


def of_single_examples(*kinds):
    return taken_by(*kinds), taken_by(*kinds, exchanged=True)


@pytest.mark.parametrize("kind", [Examples, pytest.param(Mapped, marks=pytest.mark.slow)])
def test_those_of_single_examples_are_refused_unless_replicas_exchange_them(replicas, kind):
    left, exchanged = replicas(of_single_examples, kind)
    for apart, (told,) in left.values():
        assert apart is None
        assert told.startswith("Own.train_step gives its optimizer gradients of the data of which")
        assert 'all_reduce("sum", grads)' in told
    assert all(apart < 1e-5 and told == [] for apart, told in exchanged.values()), exchanged
