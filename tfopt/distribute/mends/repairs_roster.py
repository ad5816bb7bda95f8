"""The defects that tfopt mends under a distribution strategy, and the one place that mends them.

Guarantees: a mend is put on only where its probe finds the defect in the installed version; what
was put on acts under that strategy alone. Each module named here has ``probe(strategy) -> bool``,
which leaves nothing behind, and ``mend(strategy)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Repair:
    """One defect: what a user meets, where it is told, and the module that mends it."""

    module: str
    defect: str
    upstream: str = ""
    # In a training of one process, of several processes, or in both.
    several_processes_only: bool = False

    @property
    def key(self) -> str:
        """Return the last part of the module's name."""
        return self.module.rpartition(".")[2]

    @property
    def name(self) -> str:
        """Return the name that ``tfopt repairs`` lists."""
        return self.key.replace("_", " ")

    def probe(self, *strategy: Any) -> bool:
        """Whether the installed version has the defect."""
        return bool(self._of_module("probe")(*strategy))

    def mend(self, strategy: Any) -> None:
        """Puts the mend in force under this strategy."""
        self._of_module("mend")(strategy)

    def _of_module(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(import_module(self.module), name)
        return function


# In the order in which they are put on: a later one may rely on an earlier one.
REPAIRS = (
    Repair(
        "tfopt.distribute.mends.reduced_gradients",
        "gradients are clipped, and asked whether they are finite, before they are summed over "
        "the replicas: other weights than on one device, or infinite ones, silently",
    ),
    Repair(
        "tfopt.distribute.mends.conditional_updates",
        "gradient_accumulation_steps and ema_overwrite_frequency fail: merge_call inside a "
        "condition",
        upstream="keras-team/keras#20582",
    ),
    Repair(
        "tfopt.distribute.mends.late_optimizers",
        "an optimizer that makes its variables in the first step (a loop of your own, the two of a "
        "GAN) fails on a placeholder that nobody feeds",
    ),
    Repair(
        "tfopt.distribute.mends.loss_shares",
        "each replica's mean loss counts the same, however many examples, or unmasked steps, it "
        "is a mean of: other weights than on one device for uneven batches and masks, silently",
    ),
    Repair(
        "tfopt.distribute.mends.added_losses",
        "what add_loss and activity regularizers add on one replica is cleared, or counted again, "
        "by the next one's call where replicas exchange something in between: other weights than "
        "on one device, silently",
    ),
    Repair(
        "tfopt.distribute.mends.own_attributes",
        "what call() keeps on the model or a layer (self.attention = scores, an auxiliary loss) is "
        "another replica's once replicas have exchanged something in between: other weights than "
        "on one device, silently",
    ),
    Repair(
        "tfopt.distribute.mends.moving_statistics",
        "BatchNormalization's moving statistics are each replica's own, and only the first one's "
        "are saved; a replica without examples in a short batch makes all weights NaN",
    ),
    Repair(
        "tfopt.distribute.mends.empty_convolutions",
        "on CPUs a convolution of no images gives the shape of its input, and what follows fails: "
        "a last batch of fewer examples than replicas ends the training",
    ),
    Repair(
        "tfopt.distribute.mends.first_batch",
        "a batch is taken to build the model by: fit fails where it is uneven, and on several "
        "workers; generators and PyDatasets with workers lose batches, silently",
        upstream="keras-team/keras#20585",
    ),
    Repair(
        "tfopt.distribute.mends.borrowed_arrays",
        "a step writes into the NumPy arrays that a generator or PyDataset yields: other data in "
        "the next epoch, silently",
    ),
    Repair(
        "tfopt.distribute.mends.variables_as_numbers",
        "float() and int() of a learning rate, a step or a metric's total fail: callbacks that log "
        "them end in a TypeError",
    ),
    Repair(
        "tfopt.distribute.mends.worker_logs",
        "every fit fails on the logs of its first step: scalars averaged along an axis",
        several_processes_only=True,
    ),
    Repair(
        "tfopt.distribute.mends.models_without_call",
        "a model with a train_step and no call(), such as the VAE of Keras's guides, or whose "
        "call() takes a batch otherwise, fails in fit: it is called to build it",
    ),
    Repair(
        "tfopt.distribute.mends.compiled_outside",
        "a model that is compiled outside its scope fails in fit, and one that was built outside "
        "trains on one device",
    ),
    Repair(
        "tfopt.distribute.mends.worker_input",
        "an epoch of files or of the workers' own data ends before all is seen, and unseeded "
        "shuffles are shared out from different orders, silently",
        several_processes_only=True,
    ),
    Repair(
        "tfopt.distribute.mends.worker_files",
        "callbacks of all workers write the same files at the same time",
        several_processes_only=True,
    ),
    Repair(
        "tfopt.distribute.mends.worker_saves",
        "Model.save, save_weights and export of all workers write one file at the same time: it "
        "is torn, or locked",
        upstream="tensorflow/tensorflow#38635",
        several_processes_only=True,
    ),
    Repair(
        "tfopt.distribute.mends.several_steps",
        "steps_per_execution above 1 ends in a placeholder that nobody feeds",
        upstream="keras-team/keras#19246",
    ),
    Repair(
        "tfopt.distribute.mends.compiled_steps",
        "jit_compile=True fails: one XLA program cannot hold the variables of several devices",
    ),
    Repair(
        "tfopt.distribute.mends.predict_on_batch",
        "predict_on_batch returns each output once for every replica, silently",
    ),
    Repair(
        "tfopt.train.rematerialised_calls",
        "RematScope fails in fit; where it runs, Dropout's gradient is that of another mask and "
        "moving statistics move twice, silently",
        upstream="keras-team/keras#21207",
    ),
    # In front of what writes the step anew: it tells which step of Keras's a loss is computed in.
    Repair(
        "tfopt.distribute.mends.own_losses",
        "a mean loss that train_step, compute_loss or a loss function takes by itself counts once "
        "for each replica: N times the gradient of one device, silently",
        upstream="keras-team/keras#14104",
    ),
    Repair(
        "tfopt.distribute.mends.shown_losses",
        "in a train_step a Mean that is given its loss, as the trackers of Keras's guides, shows "
        "an N-th of it, and other metrics what one replica has seen",
    ),
)


def mend_all(strategy: Any) -> tuple[Repair, ...]:
    """Mends what is trained under a strategy of two replicas or more; what was mended."""
    if strategy.num_replicas_in_sync < 2:
        return ()
    processes = bool(getattr(strategy.extended, "_in_multi_worker_mode", lambda: False)())
    mended = []
    with _names_given_back():
        for repair in REPAIRS:
            if (processes or not repair.several_processes_only) and repair.probe(strategy):
                repair.mend(strategy)
                mended.append(repair)
    return tuple(mended)


# Not under a strategy, but where their own callers put them on; their probes need none.
ELSEWHERE = (
    Repair(
        "tfopt.train.xla_cpu_max_pool",
        "XLA on the CPU runs the gradient of max pooling several times slower than TensorFlow",
    ),
    Repair(
        "tfopt.distribute.asynchronous.lost_updates",
        "on parameter servers workers lose each other's updates of counts, momenta and statistics",
        upstream="keras-team/keras#18668",
    ),
    Repair(
        "tfopt.distribute.mends.cleared_sessions",
        "clear_session() inside a distribution scope ends it: what is built behind it trains on "
        "one device, silently",
    ),
)


def found_here() -> list[tuple[Repair, bool | None]]:
    """Each repair, and whether the installed versions have its defect; None where that takes
    several processes. Must come before TensorFlow has initialised its devices."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found: list[tuple[Repair, bool | None]] = [
        (repair, None if repair.several_processes_only else repair.probe(strategy))
        for repair in REPAIRS
    ]
    return found + [(repair, repair.probe()) for repair in ELSEWHERE]


@contextmanager
def _names_given_back() -> Iterator[None]:
    """What probes make takes no number of Keras's: the user's first model is still the first."""
    from keras.src.backend.common import global_state

    name = "object_name_uids"
    before = global_state.get_global_attribute(name)
    before = None if before is None else before.copy()
    try:
        yield
    finally:
        global_state.set_global_attribute(name, before)
