import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf import batching
from bert_tf.unpadding import Layout, find_token_indices, gather_rows, in_xla


def test_a_gathered_permutation_has_the_gradient_that_tensorflow_gives():
    rng = np.random.RandomState(0)
    order = rng.permutation(7)
    x, weights = tf.constant(rng.normal(size=[7, 3])), rng.normal(size=[7, 3])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        one = tf.reduce_sum(gather_rows(x, order, np.argsort(order)) * weights)
        two = tf.reduce_sum(tf.gather(x, order) * weights)
    assert (tape.gradient(one, x) == tf.convert_to_tensor(tape.gradient(two, x))).numpy().all()
    assert float(one) == float(two)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 4), length=st.integers(1, 9), seed=st.integers(0, 99), xla=st.booleans())
def test_packing_and_unpacking_keep_every_token_and_its_gradient(rows, length, seed, xla):
    rng = np.random.RandomState(seed)
    mask = rng.randint(0, 2, [rows, length]).astype(np.int32)
    real = batching.computed_places(mask).reshape(-1)
    places = tf.constant(rng.normal(size=[rows * length, 2]).astype(np.float32))
    weights = rng.normal(size=[rows * length, 2]).astype(np.float32) * real[:, None]
    for indices in (find_token_indices(mask), batching.token_indices(real.reshape(mask.shape),
                                                                     batching.Sizes(length, xla)), None):
        layout = Layout.of(mask, indices)
        assert (layout.bias.numpy()[:, 0, 0] == np.where(mask, 0, -10000)).all()
        with tf.GradientTape() as tape:
            tape.watch(places)
            back = layout.unpack(layout.pack(places))
            total = tf.reduce_sum(back * weights)
        assert (back.numpy()[real] == places.numpy()[real]).all()
        assert (tape.gradient(total, places).numpy()[real] == weights[real]).all()
        numbers = tf.range(rows * length)
        packed = layout.pack_ids(numbers)
        assert len(set(packed.numpy())) == len(packed)
        positions = rng.randint(0, length, [rows, 1])
        positions[:] = np.argmax(real.reshape(mask.shape), axis=1)[:, None]
        chosen = layout.select(layout.pack(places), tf.constant(positions, tf.int32))
        assert (chosen.numpy() == places.numpy()[(positions + np.arange(rows)[:, None] * length)[:, 0]]).all()


def test_what_must_be_computed():
    mask = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 1]], np.int32)
    assert find_token_indices(mask).numpy().tolist() == [0, 1, 4, 5, 6, 7, 8, 9, 11, 2]
    positions = np.array([[3, 0], [0, 0], [0, 2]], np.int32)
    assert find_token_indices(mask, positions).numpy().tolist() == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 2]
    assert find_token_indices(np.ones([2, 2], np.int32)).numpy().tolist() == [0, 1, 2, 3]


def test_xla_is_noticed_while_tracing():
    seen = []

    def note(x):
        seen.append(in_xla())
        return tf.function(lambda y: (seen.append(in_xla()), y)[1])(x)

    tf.function(note)(tf.constant(1.0))
    tf.function(note, jit_compile=True)(tf.constant(1.0))
    assert seen == [False, False, True, True]
