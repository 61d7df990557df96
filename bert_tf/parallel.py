"""Work shared among processes: in order, and with little of it in memory at a time."""

import collections
import concurrent.futures
import multiprocessing
from concurrent.futures.process import BrokenProcessPool

from bert_tf.errors import UserError


def ordered_map(function, jobs, num_processes, *common):
    """Yields `function(job, *common)` for each job of an iterable, in order, the same for any number of processes.

    The processes are started afresh, never forked: the calling one may hold TensorFlow's threads. Each imports the
    module of `function` and gets `common` once. Jobs are taken as results are, a few ahead. `UserError` when a process
    was ended from outside.
    """
    if num_processes == 1:
        yield from (function(job, *common) for job in jobs)
        return
    waiting = collections.deque()
    with concurrent.futures.ProcessPoolExecutor(num_processes, multiprocessing.get_context("spawn"), _start,
                                                (function, common)) as pool:
        try:
            for job in jobs:
                waiting.append(pool.submit(_work, job))
                if len(waiting) > 2 * num_processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise UserError("a worker process was ended from outside, out of memory perhaps: fewer processes take "
                            "less") from error
        finally:
            for future in waiting:
                future.cancel()


def _start(function, common):
    global _function, _common
    _function, _common = function, common


def _work(job):
    return _function(job, *_common)
