"""Work shared among processes."""

import itertools
import os

import pytest

from bert_tf import parallel
from bert_tf.errors import UserError


def add(job, number):
    return job + number, os.getpid()


def end(job):
    os._exit(1)


@pytest.mark.parametrize("num_processes", [1, 2])
def test_results_come_in_order_and_jobs_are_taken_as_they_do(num_processes):
    taken = itertools.count()
    jobs = (next(taken) for _ in range(1000))
    results = parallel.ordered_map(add, jobs, num_processes, 5)
    found = list(itertools.islice(results, 20))
    results.close()
    assert [number for number, _ in found] == list(range(5, 25))
    assert next(taken) <= 20 + 2 * num_processes
    assert (os.getpid() in {process for _, process in found}) == (num_processes == 1)


def test_no_job_is_no_result():
    assert list(parallel.ordered_map(add, [], 2, 5)) == []


def test_an_error_in_the_jobs_comes_through():
    def jobs():
        yield 1
        raise UserError("row 2 is bad")

    with pytest.raises(UserError, match="row 2 is bad"):
        list(parallel.ordered_map(add, jobs(), 2, 5))


def test_a_process_that_was_ended_is_one_line():
    with pytest.raises(UserError, match="a worker process was ended from outside"):
        list(parallel.ordered_map(end, [1, 2, 3], 2))
