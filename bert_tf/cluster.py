"""The workers that train together, as TF_CONFIG names them: who they are, waiting for them, finding the lost ones.

No TensorFlow: a worker that cannot take part says so before it joins.
"""

import contextlib
import dataclasses
import json
import os
import socket
import sys
import threading
import time

from bert_tf.errors import UserError

VARIABLE = "TF_CONFIG"
EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
SECONDS_BETWEEN_TRIES = 0.2


@dataclasses.dataclass(frozen=True)
class Cluster:
    """`workers`, addresses `host:port`, the chief first; `index` is this process's place among them."""

    workers: tuple
    index: int

    @classmethod
    def from_environment(cls, environment=os.environ):
        """The cluster that TF_CONFIG describes, None where it is not set; `UserError` for what describes none."""
        text = environment.get(VARIABLE)
        if not text:
            return None
        try:
            config = json.loads(text)
            cluster, task = config["cluster"], config["task"]
            chiefs, workers = cluster.get("chief", []), cluster.get("worker", [])
            kind, index = task["type"], task["index"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{VARIABLE} describes no cluster; it must be JSON such as {EXAMPLE}") from None
        others = sorted(set(cluster) - {"chief", "worker"})
        if others or kind not in ("chief", "worker"):
            raise UserError(f"{VARIABLE}: {others[0] if others else kind} is no kind of task here; all are worker, "
                            "one may be chief")
        mine, before = (chiefs, []) if kind == "chief" else (workers, chiefs)
        if type(index) is not int or not 0 <= index < len(mine):
            raise UserError(f"{VARIABLE}: task {kind} {index!r} is not in its cluster")
        addresses = (*chiefs, *workers)
        for address in addresses:
            _split(address)
        if len(set(addresses)) < len(addresses):
            raise UserError(f"{VARIABLE}: two workers have the same address")
        return cls(addresses, len(before) + index)

    @property
    def is_chief(self):
        """Whether this worker is the one that writes."""
        return self.index == 0

    @property
    def others(self):
        """The addresses of the other workers."""
        return tuple(address for place, address in enumerate(self.workers) if place != self.index)

    def wait(self, timeout):
        """Returns when every other worker was seen; `UserError` naming those that did not come in `timeout` seconds.

        Until then this worker's own port is open, so that they see it too; TensorFlow takes the port over.
        """
        end = time.monotonic() + timeout
        missing = self.others
        with _listening(self.workers[self.index]):
            while True:
                missing = [address for address in missing if not _answers(address)]
                if not missing:
                    return
                if time.monotonic() > end:
                    raise UserError(f"{', '.join(missing)} did not come within {timeout:g} s; start every worker that "
                                    f"{VARIABLE} names with the same command (--worker_timeout waits longer)")
                time.sleep(SECONDS_BETWEEN_TRIES)

    def lost(self):
        """The addresses of the workers that do not answer any more."""
        return [address for address in self.others if not _answers(address)]


def _split(address):
    """Host and port of an address; `UserError` for what is none."""
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"{VARIABLE}: {address!r} is no address such as host1:2222")
    return host.strip("[]"), int(port)


def _answers(address):
    try:
        with socket.create_connection(_split(address), timeout=2.0):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def _listening(address):
    """Holds the port of this worker's own address open, on all of the machine's interfaces."""
    _, port = _split(address)
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise UserError(f"{VARIABLE}: port {port} of this worker cannot be opened ({error.strerror}); is another "
                        "run using it?") from error
    with listener:
        yield


@contextlib.contextmanager
def time_limit(seconds, message):
    """Ends the program with a line and status 2 where the block takes longer: TensorFlow waits for peers for ever."""
    def end():
        print(f"error: {message}", file=sys.stderr, flush=True)
        os._exit(2)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
