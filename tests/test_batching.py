import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf import batching
from bert_tf.errors import UserError
from bert_tf.unpadding import find_token_indices

few = settings(max_examples=40, deadline=None)


@st.composite
def masks(draw):
    """A mask bool-like int32 [B, S] of any form, holes and whole rows of padding included."""
    rows, length = draw(st.integers(1, 5)), draw(st.integers(1, 20))
    bits = draw(st.lists(st.integers(0, 1), min_size=rows * length, max_size=rows * length))
    return np.array(bits, np.int32).reshape(rows, length)


class TestEpochOrder:
    @few
    @given(num_examples=st.integers(1, 300), seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 10**6),
           buffer=st.integers(0, 400))
    def test_every_example_comes_once(self, num_examples, seed, epoch, buffer):
        order = batching.epoch_order(num_examples, seed, epoch, buffer)
        assert sorted(order) == list(range(num_examples))
        assert (order == batching.epoch_order(num_examples, seed, epoch, buffer)).all()

    @pytest.mark.parametrize("buffer", [0, 20])
    def test_every_seed_and_epoch_has_an_order_of_its_own(self, buffer):
        orders = {tuple(batching.epoch_order(100, seed, epoch, buffer)) for seed in range(5) for epoch in range(5)}
        assert len(orders) == 25

    def test_the_orders_are_pinned(self):
        assert batching.epoch_order(10, 12345, 0).tolist() == PINNED[0]
        assert batching.epoch_order(10, 12345, 1).tolist() == PINNED[1]
        assert batching.epoch_order(10, 12345, 0, 3).tolist() == PINNED[2]

    @few
    @given(num_examples=st.integers(2, 300), seed=st.integers(0, 99), data=st.data())
    def test_a_buffer_never_reads_further_ahead_than_its_size(self, num_examples, seed, data):
        buffer = data.draw(st.integers(1, num_examples - 1))
        order = batching.epoch_order(num_examples, seed, 0, buffer)
        assert (order < np.arange(num_examples) + buffer).all()

    def test_a_buffer_of_one_is_file_order(self):
        assert batching.epoch_order(50, 3, 2, 1).tolist() == list(range(50))

    @pytest.mark.parametrize("buffer", [0, 10])
    def test_places_are_evenly_drawn(self, buffer):
        firsts = collections.Counter(batching.epoch_order(20, seed, 0, buffer)[0] for seed in range(4000))
        expected = 4000 / (buffer or 20)
        assert len(firsts) == (buffer or 20)
        assert sum((count - expected) ** 2 / expected for count in firsts.values()) < 50  # 19 degrees of freedom


PINNED = ([0, 2, 8, 5, 6, 7, 3, 9, 4, 1], [8, 3, 6, 0, 1, 2, 9, 5, 7, 4], [1, 3, 4, 0, 5, 7, 8, 6, 2, 9])


class TestTrainingOrder:
    @few
    @given(num_examples=st.integers(1, 40), batch_size=st.integers(1, 50), start=st.integers(0, 200),
           buffer=st.integers(0, 10))
    def test_any_start_gives_the_same_stream(self, num_examples, batch_size, start, buffer):
        whole = itertools.islice(batching.training_order(num_examples, 1, 7, 0, buffer), start + 3 * batch_size)
        whole = np.concatenate(list(whole))[start:]
        resumed = itertools.islice(batching.training_order(num_examples, batch_size, 7, start, buffer), 3)
        resumed = list(resumed)
        assert all(batch.shape == (batch_size,) and batch.dtype == np.int64 for batch in resumed)
        assert (np.concatenate(resumed) == whole).all()

    def test_each_epoch_holds_every_example(self):
        stream = np.concatenate(list(itertools.islice(batching.training_order(7, 3, 1), 14)))
        for epoch in range(6):
            assert sorted(stream[epoch * 7:epoch * 7 + 7]) == list(range(7))


    @few
    @given(num_examples=st.integers(1, 300), batch_size=st.integers(1, 40), first_batch=st.integers(0, 30))
    def test_batches_of_like_length_hold_every_example_and_begin_anywhere(self, num_examples, batch_size, first_batch):
        lengths = np.random.RandomState(num_examples).randint(2, 60, num_examples)

        def batches(start, count):
            order = batching.training_order(num_examples, batch_size, 7, start, lengths=lengths)
            return np.concatenate(list(itertools.islice(order, count)))

        count = first_batch + 3 + -(-2 * num_examples // batch_size)
        whole = batches(0, count)
        assert (batches(first_batch * batch_size, count - first_batch) == whole[first_batch * batch_size:]).all()
        for epoch in range(2):
            assert sorted(whole[epoch * num_examples:][:num_examples]) == list(range(num_examples))

    def test_batches_of_like_length_are_alike_and_not_in_order_of_length(self):
        lengths = np.random.RandomState(0).randint(2, 130, 1003)
        order = batching.training_order(1003, 16, 7, lengths=lengths)
        batches = list(itertools.islice(order, 180))  # nearly three epochs, which are no whole number of batches
        spreads = [np.ptp(lengths[batch]) for batch in batches]
        assert np.median(spreads) < 5 and np.mean(spreads) < 8
        means = [lengths[batch].mean() for batch in batches[:60]]
        assert abs(np.corrcoef(means, range(60))[0, 1]) < 0.3


def test_evaluation_takes_files_in_order_and_begins_again():
    batches = list(batching.evaluation_order(5, 3, 4))
    assert [batch.tolist() for batch in batches] == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]
    assert all(batch.dtype == np.int64 for batch in batches)


class TestSizes:
    @few
    @given(max_seq_length=st.integers(1, 600), xla=st.booleans(), data=st.data())
    def test_lengths_hold_the_longest_and_are_few(self, max_seq_length, xla, data):
        sizes = batching.Sizes(max_seq_length, xla)
        longest = data.draw(st.integers(1, max_seq_length))
        assert longest <= sizes.length(longest) <= max_seq_length
        assert sizes.length(longest) - longest < (max_seq_length / 4 + 1 if xla else 8)
        if xla:
            assert len({sizes.length(n) for n in range(1, max_seq_length + 1)}) <= 4

    @few
    @given(places=st.integers(1, 5000), xla=st.booleans(), data=st.data())
    def test_tokens_leave_a_row_of_padding_unless_all_places_are_full(self, places, xla, data):
        sizes = batching.Sizes(128, xla)
        count = data.draw(st.integers(0, places))
        assert min(count + 1, places) <= sizes.tokens(count, places) <= places
        if xla:
            assert len({sizes.tokens(n, places) for n in range(places + 1)}) <= 8


class TestTokenIndices:
    @few
    @given(mask=masks(), xla=st.booleans())
    def test_no_place_twice_and_padding_last_unless_full(self, mask, xla):
        real = mask != 0
        indices = batching.token_indices(real, batching.Sizes(mask.shape[1], xla))
        assert indices.dtype == np.int32 and len(set(indices)) == len(indices) <= mask.size
        assert set(np.flatnonzero(real)) <= set(indices)
        assert real.all() or not real.reshape(-1)[indices[-1]]
        assert (np.sort(indices[:real.sum()]) == np.flatnonzero(real)).all()

    @few
    @given(mask=masks(), data=st.data())
    def test_the_places_are_those_that_the_model_finds_itself(self, mask, data):
        positions = None
        if data.draw(st.booleans()):
            positions = np.array(data.draw(st.lists(st.lists(
                st.integers(0, mask.shape[1] - 1), min_size=3, max_size=3), min_size=len(mask), max_size=len(mask))),
                np.int32)
        before = mask.copy()
        real = batching.computed_places(mask, positions)
        assert (mask == before).all()
        found = find_token_indices(tf.constant(mask), positions).numpy()
        padding = 0 if real.all() else 1
        assert set(found[:len(found) - padding]) == set(np.flatnonzero(real))

    @few
    @given(mask=masks(), xla=st.booleans())
    def test_unpad_cuts_nothing_that_counts(self, mask, xla):
        length = mask.shape[1]
        rng = np.random.RandomState(mask.sum())
        batch = {"input_ids": rng.randint(0, 9, mask.shape).astype(np.int32), "input_mask": mask,
                 "segment_ids": np.zeros_like(mask), "other": np.arange(len(mask))}
        positions = rng.randint(0, length, [len(mask), 2]).astype(np.int32)
        cut = batching.unpad(batch, batching.Sizes(length, xla), positions)
        new_length = cut["input_ids"].shape[1]
        assert new_length > positions.max()
        assert (mask[:, new_length:] == 0).all() and (cut["input_ids"] == batch["input_ids"][:, :new_length]).all()
        assert cut["other"] is batch["other"] and set(cut) == set(batch) | {"token_indices"}
        laid_out = batching.computed_places(cut["input_mask"], positions).reshape(-1)
        assert set(np.flatnonzero(laid_out)) <= set(cut["token_indices"])


def test_a_bounded_number_of_shapes_under_xla():
    rng, sizes, shapes = np.random.RandomState(0), batching.Sizes(128, True), set()
    for _ in range(300):
        mask = (np.arange(128) < rng.randint(5, 129, [16, 1])).astype(np.int32)
        batch = batching.unpad(dict.fromkeys(("input_ids", "input_mask", "segment_ids"), mask), sizes)
        shapes.add((batch["input_ids"].shape, batch["token_indices"].shape))
    assert len(shapes) <= 8


def real_batches(feed, start=0):
    """The batches of a feed that deals to one replica."""
    steps = feed.dataset(start).take_while(lambda parts, is_real: is_real)
    return [{name: value.numpy() for name, value in batch.items()} for ((batch,),), _ in steps]


class TestFeed:
    @staticmethod
    def make(numbers):
        if 5 in numbers:
            raise UserError("file: record 5 is bad")
        return {"numbers": numbers, "wide": np.zeros([2, numbers[0] + 1], np.float32)}

    def test_batches_come_in_order_with_their_own_shapes(self):
        feed = batching.Feed(lambda start: batching.evaluation_order(4, 2, 3), self.make)
        batches = real_batches(feed)
        assert [batch["numbers"].tolist() for batch in batches] == [[0, 1], [2, 3], [0, 1]]
        assert [batch["wide"].shape for batch in batches] == [(2, 1), (2, 3), (2, 1)]
        assert feed.error is None

    def test_a_bad_example_ends_them_after_the_good_ones(self):
        feed = batching.Feed(lambda start: batching.evaluation_order(8, 2, 4), self.make)
        assert len(real_batches(feed)) == 2
        assert str(feed.error) == "file: record 5 is bad"

    def test_a_bad_first_batch_is_said_at_once(self):
        with pytest.raises(UserError, match="record 5"):
            batching.Feed(lambda start: [np.array([5])], self.make).dataset()

    def test_a_run_goes_on_at_any_example(self):
        feed = batching.Feed(lambda start: batching.training_order(3, 2, 0, start, end=7), self.make)
        whole = np.concatenate([batch["numbers"] for batch in real_batches(feed)])
        assert len(whole) == 7
        assert np.concatenate([batch["numbers"] for batch in real_batches(feed, 4)]).tolist() == whole[4:].tolist()

    def test_a_step_is_dealt_to_replicas_and_micro_batches(self):
        def parts(split, examples):
            feed = batching.Feed(lambda start: [np.arange(examples)], self.make_weighted, split=split)
            (step,) = [parts for parts, is_real in feed.dataset().take(1)]
            return [[batch["numbers"].numpy().tolist() for batch in replica] for replica in step]

        assert parts(batching.Split(2, 2, 0, 2), 8) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
        assert parts(batching.Split(2, 2, 1, 1), 8) == [[[4, 5], [6, 7]]]
        assert parts(batching.Split(2, 2, 1, 1), 3) == [[[2], [0]]]  # an empty one holds the first, without weight

    def test_what_fills_up_a_batch_has_no_weight(self):
        feed = batching.Feed(lambda start: [np.arange(3)], self.make_weighted, split=batching.Split(2, 1, 0, 2),
                             rows=3)
        ((one,), (two,)), _ = next(iter(feed.dataset()))
        assert one["numbers"].numpy().tolist() == [0, 1, 0] and one["example_weights"].numpy().tolist() == [1, 1, 0]
        assert two["numbers"].numpy().tolist() == [2, 0, 0] and two["example_weights"].numpy().tolist() == [1, 0, 0]
        assert two["lm_weights"].numpy().tolist() == [[2, 2], [0, 0], [0, 0]]

    @staticmethod
    def make_weighted(numbers):
        return {"numbers": numbers, "example_weights": np.ones(len(numbers), np.float32),
                "lm_weights": np.full([len(numbers), 2], 2, np.float32)}
