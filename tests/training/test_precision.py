import tensorflow as tf

from bert_tf.training import precision


def run(scale, steps):
    found = []
    for finite in steps:
        for variable, value in zip((scale.scale, scale.good_steps), scale.next(tf.constant(finite))):
            variable.assign(value)
        found.append((float(scale.scale.numpy()), int(scale.good_steps.numpy())))
    return found


def test_it_halves_after_each_overflow_and_goes_below_one():
    scale = precision.LossScale()
    assert run(scale, [True, False, False]) == [(2.0**15, 1), (2.0**14, 0), (2.0**13, 0)]
    assert run(scale, [False] * 16)[-1] == (2.0**-3, 0)
    assert run(scale, [False] * 40)[-1] == (precision.LEAST_SCALE, 0)


def test_it_doubles_after_many_good_steps_in_a_row(monkeypatch):
    monkeypatch.setattr(precision, "STEPS_TO_GROW", 3)
    scale = precision.LossScale()
    assert run(scale, [True, True, True, True]) == [(2.0**15, 1), (2.0**15, 2), (2.0**16, 0), (2.0**16, 1)]
    assert run(scale, [True] * 40)[-1][0] == precision.GREATEST_SCALE


def test_its_slots_are_the_runs_own():
    assert set(precision.LossScale().slots()) == {"run/loss_scale", "run/good_steps"}
