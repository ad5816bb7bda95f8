"""The defects that tfopt mends under a distribution strategy, and the one place that mends them.

Guarantees: a mend is in force only where its probe finds the defect in the installed version, and
only while a call of tfopt's runs. Each module named here has ``probe(strategy) -> bool``, which
leaves nothing behind, and ``mended(strategy)``, a context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from tfopt.compress.hooks import Shared


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
        """Return the name in words."""
        return self.key.replace("_", " ")

    def probe(self, *strategy: Any) -> bool:
        """Return whether the installed version has the defect."""
        return bool(self._of_module("probe")(*strategy))

    def mended(self, strategy: Any) -> AbstractContextManager[None]:
        """Return the context in which the mend is in force for this strategy."""
        context: AbstractContextManager[None] = self._of_module("mended")(strategy)
        return context

    def _of_module(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(import_module(self.module), name)
        return function


# In the order in which they are put on.
REPAIRS = (
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
        "tfopt.distribute.mends.cleared_sessions",
        "clear_session() inside a distribution scope ends it: what is built behind it trains on "
        "one device, silently",
    ),
)

# In force by calls of their own; their probes need no strategy.
ELSEWHERE = (
    Repair(
        "tfopt.distribute.mends.worker_saves",
        "Model.save, save_weights and export of all workers write one file at the same time: it "
        "is torn, or locked",
        upstream="tensorflow/tensorflow#38635",
    ),
    Repair(
        "tfopt.train.xla_cpu_max_pool",
        "XLA on the CPU runs the gradient of max pooling several times slower than TensorFlow",
    ),
    Repair(
        "tfopt.distribute.asynchronous.lost_updates",
        "on parameter servers workers lose each other's updates of counts, momenta and statistics",
        upstream="keras-team/keras#18668",
    ),
)


def mends_in_force(strategy: Any) -> AbstractContextManager[None]:
    """Mend what is trained under a strategy while inside.

    Calls may lie inside each other, and threads overlap: the last one takes the mends off.
    """
    return _shared(strategy)()


@cache
def repairs_of(strategy: Any) -> tuple[Repair, ...]:
    """Return what a strategy needs. Over several workers the first call is made by all together."""
    processes = strategy.extended._in_multi_worker_mode()
    with _names_given_back():
        return tuple(
            repair
            for repair in REPAIRS
            if (processes or not repair.several_processes_only) and repair.probe(strategy)
        )


@cache
def _shared(strategy: Any) -> Shared:
    return Shared(lambda: _mended(strategy))


@contextmanager
def _mended(strategy: Any) -> Iterator[None]:
    with ExitStack() as held:
        for repair in repairs_of(strategy):
            held.enter_context(repair.mended(strategy))
        yield


def found_here() -> list[tuple[Repair, bool | None]]:
    """Return each repair, and whether the installed versions have its defect.

    None where that takes several processes. Must come before TensorFlow has initialised its
    devices.
    """
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
    """Let what probes make take no number of Keras's: the user's first model is still the first."""
    from keras.src.backend.common import global_state

    name = "object_name_uids"
    before = global_state.get_global_attribute(name)
    before = None if before is None else before.copy()
    try:
        yield
    finally:
        global_state.set_global_attribute(name, before)
