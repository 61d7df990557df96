"""How a program runs, never what it computes: devices, precision, XLA, seeds and determinism."""

import dataclasses
import logging

import keras
import tensorflow as tf
from tensorflow.python.eager import context

from bert_tf.cluster import EXAMPLE, VARIABLE, Cluster, time_limit
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
STRATEGIES = ("auto", "one", "mirrored", "multi_worker", "tpu")


@dataclasses.dataclass(frozen=True)
class Runtime:
    """The settings of a run.

    `precision`: what the matrix products are computed in; weights, softmax, LayerNorm and losses stay float32.
    `strategy`: `one` device, `mirrored` over all of this machine's, `multi_worker` over the workers that TF_CONFIG
    names, `tpu`; `auto` finds out. `virtual_devices` splits the CPU into so many, to rehearse `mirrored`.
    `deterministic`: the same run gives the same bytes; None is yes on a CPU, where it costs nothing, else no.
    What cannot work is a `UserError` when the settings are made, before any device is touched.
    """

    precision: str = "float32"
    xla: bool = False
    seed: int = 12345
    deterministic: bool | None = None
    strategy: str = "auto"
    virtual_devices: int = 0
    worker_timeout: float = 60.0
    tpu_name: str | None = None
    tpu_zone: str | None = None
    gcp_project: str | None = None
    num_tpu_cores: int = 8

    def __post_init__(self):
        if self.precision not in POLICIES:
            raise UserError(f"--precision={self.precision} is unknown; use one of {', '.join(POLICIES)}")
        if self.strategy not in STRATEGIES:
            raise UserError(f"--strategy={self.strategy} is unknown; use one of {', '.join(STRATEGIES)}")
        if not 0 <= self.seed < 2**31:
            raise UserError(f"--seed={self.seed} must be from 0 to {2**31 - 1}")
        workers = Cluster.from_environment()
        if self.strategy == "multi_worker" and workers is None:
            raise UserError(f"--strategy=multi_worker needs {VARIABLE} in the environment, such as "
                            f"{EXAMPLE}")
        if workers and len(workers.workers) > 1 and self.kind != "multi_worker":
            raise UserError(f"{VARIABLE} names {len(workers.workers)} workers, --strategy={self.strategy} "
                            f"would have each train by itself; unset {VARIABLE} or use multi_worker")
        if self.virtual_devices and self.kind != "mirrored":
            raise UserError(f"--virtual_devices={self.virtual_devices} is for --strategy=mirrored, not {self.kind}")
        if self.virtual_devices and tf.config.list_physical_devices("GPU"):
            raise UserError("--virtual_devices splits the CPU, this machine has a GPU; leave the flag out")
        if self.kind == "tpu" and self.precision == "float16":
            raise UserError("--precision=float16 does not work on a TPU; use bfloat16")

    @property
    def kind(self):
        """The strategy, with `auto` resolved."""
        if self.strategy != "auto":
            return self.strategy
        workers = Cluster.from_environment()
        if workers and len(workers.workers) > 1:
            return "multi_worker"
        several = self.virtual_devices or len(tf.config.list_physical_devices("GPU")) > 1
        return "mirrored" if several else "one"

    @property
    def cluster(self):
        """The workers of a `multi_worker` run, else None."""
        return Cluster.from_environment() if self.kind == "multi_worker" else None

    @property
    def is_chief(self):
        """Whether this process writes checkpoints, logs and results."""
        return self.cluster is None or self.cluster.is_chief

    @property
    def local_replicas(self):
        """How many replicas of the model this process trains."""
        gpus = max(1, len(tf.config.list_physical_devices("GPU")))
        return {"one": 1, "mirrored": self.virtual_devices or gpus, "multi_worker": gpus,
                "tpu": self.num_tpu_cores}[self.kind]

    @property
    def replicas(self):
        """How many replicas of the model train in all."""
        return self.local_replicas * (len(self.cluster.workers) if self.cluster else 1)

    @property
    def devices(self):
        """How many pieces of hardware train; virtual devices are one."""
        return self.replicas // (self.virtual_devices or 1)

    @property
    def first_replica(self):
        """The number of this process's first replica among all."""
        return self.local_replicas * self.cluster.index if self.cluster else 0

    @property
    def policy(self):
        """The Keras dtype policy to build a model with."""
        return POLICIES[self.precision]

    def start(self):
        """Joins the workers, seeds initial weights, fixes the order of operations -> the `tf.distribute.Strategy`.

        Called once, before anything is built; all that follows belongs under the strategy's `scope()`.
        """
        strategy = self._build_strategy()
        if strategy.num_replicas_in_sync != self.replicas:
            raise UserError(f"--strategy={self.kind} has {strategy.num_replicas_in_sync} devices, {self.replicas} "
                            "were expected; all workers must have as many (TPU: --num_tpu_cores)")
        keep_operations_apart()
        keras.utils.set_random_seed(self.seed)
        on_cpu = self.kind != "tpu" and not tf.config.list_physical_devices("GPU")
        if on_cpu if self.deterministic is None else self.deterministic:
            tf.config.experimental.enable_op_determinism()
        return strategy

    def _build_strategy(self):
        if self.kind == "one":
            return tf.distribute.get_strategy()
        if self.kind == "mirrored" and self.virtual_devices:
            # Plain additions: TensorFlow's usual collective operations were seen to wait for ever on virtual devices.
            return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(self.virtual_devices)],
                                                  cross_device_ops=tf.distribute.ReductionToOneDevice())
        if self.kind == "mirrored":
            return tf.distribute.MirroredStrategy()
        if self.kind == "tpu":
            return self._connect_tpu()
        logger.info("worker %d of %s: waiting for the others", self.cluster.index, ", ".join(self.cluster.workers))
        self.cluster.wait(self.worker_timeout)
        # TensorFlow joins workers only before its first operation, and checks of files were operations.
        context._reset_context()
        with time_limit(self.worker_timeout, "the workers saw each other but could not join within "
                                f"{self.worker_timeout:g} s; start them all again"):
            ring = tf.distribute.experimental.CommunicationOptions(
                implementation=tf.distribute.experimental.CommunicationImplementation.RING)
            on_gpu = tf.config.list_physical_devices("GPU")
            return tf.distribute.MultiWorkerMirroredStrategy(communication_options=None if on_gpu else ring)

    def _connect_tpu(self):
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(self.tpu_name or "local", self.tpu_zone,
                                                                         self.gcp_project)
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
            return tf.distribute.TPUStrategy(resolver)
        except Exception as error:  # whatever the cloud's libraries raise
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"--tpu_name={self.tpu_name}: no TPU can be reached ({reason})") from error


def keep_operations_apart():
    """Keeps TensorFlow from fusing operations, which makes no step faster.

    With oneDNN the same operations would be fused in one program and not in another, and round differently.
    """
    tf.config.optimizer.set_experimental_options({"remapping": False})
