import json
import pathlib
import re
import signal
import subprocess
import time

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/launch_local_workers.sh"


def launch(*arguments):
    return subprocess.run(["bash", SCRIPT, *arguments], capture_output=True, text=True, timeout=60)


def test_every_worker_knows_all_and_its_own_place():
    done = launch("3", "bash", "-c", "echo $TF_CONFIG")
    rows = sorted(re.fullmatch(r"\[(\d)\] (.*)", line).groups() for line in done.stdout.splitlines())
    configs = [json.loads(text) for _, text in rows]
    assert done.returncode == 0 and [number for number, _ in rows] == ["0", "1", "2"]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": index} for index in range(3)]
    addresses = configs[0]["cluster"]["worker"]
    assert len(set(addresses)) == 3 and all(config["cluster"]["worker"] == addresses for config in configs)


def test_the_status_is_that_of_a_worker_that_failed():
    done = launch("2", "bash", "-c", 'if [[ $TF_CONFIG == *"index\\": 1"* ]]; then echo no >&2; exit 3; fi')
    assert done.returncode == 3 and done.stdout.splitlines() == ["[1] no"]


def test_a_signal_reaches_the_workers():
    command = "trap 'echo ended; exit 2' TERM; echo ready; while true; do sleep 0.05; done"
    with subprocess.Popen(["bash", SCRIPT, "2", "bash", "-c", command], stdout=subprocess.PIPE, text=True) as process:
        ready = [process.stdout.readline() for _ in range(2)]
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=30)[0]
    assert sorted(ready) == ["[0] ready\n", "[1] ready\n"] and sorted(rest.splitlines()) == ["[0] ended", "[1] ended"]
    assert process.returncode == 2


@pytest.mark.parametrize("arguments", [(), ("2",), ("0", "true"), ("two", "true")])
def test_wrong_arguments_are_refused(arguments):
    done = launch(*arguments)
    assert done.returncode == 2 and done.stderr.startswith("usage: ")
