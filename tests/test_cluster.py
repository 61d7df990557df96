import json
import socket
import subprocess
import sys
import threading
import time

import pytest

from bert_tf import cluster
from bert_tf.errors import UserError

TWO = {"cluster": {"worker": ["127.0.0.1:1111", "b:2222"]}, "task": {"type": "worker", "index": 1}}


def parse(config):
    return cluster.Cluster.from_environment({"TF_CONFIG": config if isinstance(config, str) else json.dumps(config)})


def free_address():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def test_workers_and_the_place_among_them():
    found = parse(TWO)
    assert found.workers == ("127.0.0.1:1111", "b:2222") and found.index == 1 and not found.is_chief
    assert found.others == ("127.0.0.1:1111",)
    chief = {"cluster": {"worker": ["b:1"], "chief": ["a:1"]}, "task": {"type": "chief", "index": 0}}
    assert parse(chief).workers == ("a:1", "b:1") and parse(chief).is_chief
    worker = {**chief, "task": {"type": "worker", "index": 0}}
    assert parse(worker).index == 1 and not parse(worker).is_chief


def test_no_cluster_without_the_variable():
    assert cluster.Cluster.from_environment({}) is None and cluster.Cluster.from_environment({"TF_CONFIG": ""}) is None


@pytest.mark.parametrize("config, part", [
    ("{", "describes no cluster"), ("[1]", "describes no cluster"), ({"cluster": {}}, "describes no cluster"),
    ({**TWO, "task": {"type": "worker"}}, "describes no cluster"),
    ({**TWO, "task": {"type": "worker", "index": 2}}, "task worker 2 is not in its cluster"),
    ({**TWO, "task": {"type": "worker", "index": -1}}, "-1"),
    ({**TWO, "task": {"type": "worker", "index": "0"}}, "'0'"),
    ({**TWO, "task": {"type": "chief", "index": 0}}, "task chief 0"),
    ({**TWO, "task": {"type": "evaluator", "index": 0}}, "evaluator is no kind of task"),
    ({"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "worker", "index": 0}}, "ps is no kind"),
    ({"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}}, "same address"),
    ({"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}, "'a' is no address"),
    ({"cluster": {"worker": ["a:70000"]}, "task": {"type": "worker", "index": 0}}, "no address"),
    ({"cluster": {"worker": [3]}, "task": {"type": "worker", "index": 0}}, "3 is no address")])
def test_what_describes_no_cluster_is_refused_in_one_line(config, part):
    with pytest.raises(UserError, match=part) as error:
        parse(config)
    assert str(error.value).startswith("TF_CONFIG") and "\n" not in str(error.value)


def test_a_worker_waits_for_the_others_and_can_be_seen_meanwhile():
    mine, other = free_address(), free_address()
    waiting = threading.Thread(target=cluster.Cluster((mine, other), 0).wait, args=[10])
    waiting.start()
    time.sleep(0.3)
    assert waiting.is_alive() and cluster.Cluster((mine, other), 1).lost() == []
    with socket.create_server(("127.0.0.1", int(other.rpartition(":")[2]))):
        waiting.join(timeout=5)
    assert not waiting.is_alive()


def test_a_worker_that_never_comes_is_named():
    addresses = (free_address(), free_address())
    with pytest.raises(UserError, match=f"{addresses[1]} did not come within 0.3 s"):
        cluster.Cluster(addresses, 0).wait(0.3)
    assert cluster.Cluster(addresses, 0).lost() == [addresses[1]]


def test_a_port_that_another_program_holds_is_said():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} of this worker cannot be opened"):
            cluster.Cluster((f"127.0.0.1:{port}", free_address()), 0).wait(1)


def test_a_block_that_takes_too_long_ends_the_program():
    program = ("import time; from bert_tf.cluster import time_limit\n"
               "with time_limit(5, 'never seen'): pass\n"
               "with time_limit(0.2, 'could not join'): time.sleep(20)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=15)
    assert (done.returncode, done.stderr) == (2, "error: could not join\n")
