import collections
import gzip
import hashlib
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf import files, packing
from bert_tf.errors import UserError
from bert_tf.pretraining import documents, instances, masking
from bert_tf.tokenization import FullTokenizer

RUNS = ("plain", "wwm", "multi_a", "multi_b", "onedoc")
NAMES = [field for field in instances.Settings.__dataclass_fields__ if field != "no_false_random_next"]


def _make(found, vocabulary, run_settings):
    """All instances in the order in which they are written, the counts, and the generator after the run."""
    rng, counts = random.Random(run_settings.random_seed), instances.Counts()
    made = list(instances.create(found, vocabulary, run_settings, rng, counts))
    masking.shuffle(made, rng)
    return made, counts, rng


def _golden(folder, monkeypatch, flags):
    monkeypatch.chdir(folder)
    tokenizer = FullTokenizer(flags["vocab_file"], flags.get("do_lower_case", True))
    spans = documents.whole(files.expand(flags["input_file"], "input_file"))
    found = documents.read(spans, tokenizer.encode, instances.Counts())
    run_settings = instances.Settings(**{name: flags[name] for name in NAMES})
    return *_make(found, masking.MaskingVocabulary.of(tokenizer.vocab), run_settings), tokenizer, run_settings


def _row(instance, run_settings):
    length, most = run_settings.max_seq_length, run_settings.max_predictions_per_seq
    return [
        packing.pad(instance.input_ids, length),
        packing.pad([1] * len(instance.input_ids), length),
        packing.pad(instance.segment_ids, length),
        packing.pad(instance.masked_lm_positions, most),
        packing.pad(instance.masked_lm_ids, most),
        [int(instance.is_random_next)],
    ]


@pytest.mark.parametrize("name", RUNS)
def test_every_instance_of_the_recorded_runs(goldens, monkeypatch, name):
    folder = goldens / "pretrain_data"
    run = json.loads((folder / "runs.json").read_text())[name]
    made, counts, rng, tokenizer, run_settings = _golden(folder, monkeypatch, run["flags"])
    rows = json.dumps([_row(instance, run_settings) for instance in made], separators=(",", ":"))
    assert hashlib.sha256(rows.encode()).hexdigest() == run["sha256_of_compact_json_of_all_instances"]
    assert rng.random() == run["next_python_rng_value_after_run"]
    assert counts.instances == len(made) == run["num_instances"]
    with gzip.open(folder / f"pretrain_{name}_first.jsonl.gz", "rt") as file:
        expected = [json.loads(line) for line in file]
    for instance, want in zip(made, expected):
        assert [tokenizer.inv_vocab[piece] for piece in instance.input_ids] == want["tokens"]
        assert instance.segment_ids == want["segment_ids_unpadded"]
        assert instance.is_random_next == want["is_random_next"]
        assert instance.masked_lm_positions == want["masked_lm_positions_unpadded"]
        assert [tokenizer.inv_vocab[label] for label in instance.masked_lm_ids] == want["masked_lm_labels"]


@pytest.mark.parametrize("number", range(6))
def test_statistics_of_the_large_runs(goldens, monkeypatch, number):
    folder = goldens / "pretrain_data"
    want = json.loads((folder / "statistics.json").read_text())[number]
    # Two of them whole, which must agree exactly; of the others a fifth, within sampling error.
    whole = number in (0, 5)
    flags = {**want, "input_file": "corpus.txt", "vocab_file": "vocab.txt"}
    made, counts, _, _, _ = _golden(folder, monkeypatch, {**flags, "dupe_factor": 40 if whole else 8})
    got = {
        "frac_random_next": (counts.random_next / len(made), 1),
        "masked_per_token": (counts.masked / counts.pieces, 1),
        "masked_per_maskable_token": (counts.masked / (counts.pieces - 3 * len(made)), 1),
        "frac_kept": (counts.kept / counts.masked, 1),
        "frac_replaced_by_MASK": ((counts.masked - counts.kept - counts.replaced) / counts.masked, 1),
        "mean_tokens": (counts.pieces / len(made), 128),
        "mean_predictions": (counts.masked / len(made), 20),
        "mean_segment_a_tokens": (sum(each.segment_ids.index(1) - 2 for each in made) / len(made), 128),
    }
    for name, (value, scale) in got.items():
        # Replaced tokens may equal what they replace or be [MASK]; the recorded shares count what can be seen.
        loose = 0.002 if name in ("frac_kept", "frac_replaced_by_MASK") else 1e-9
        assert value == pytest.approx(want[name], abs=loose if whole else 0.02 * scale), name
    if whole:
        assert len(made) == want["instances"]
        lengths = collections.Counter(str(len(each.input_ids)) for each in made)
        assert lengths == want["length_histogram"]
        assert collections.Counter(str(len(each.masked_lm_ids)) for each in made) == want["num_predictions_histogram"]


VOCABULARY = masking.MaskingVocabulary.of(
    {"[CLS]": 0, "[SEP]": 1, "[MASK]": 2, **{f"w{n}": n for n in range(3, 90)}, **{f"##{n}": n for n in range(90, 99)}}
)
SENTENCES = st.lists(st.lists(st.integers(3, 98), min_size=1, max_size=30), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(SENTENCES, min_size=1, max_size=5), st.integers(5, 64), st.floats(0, 1), st.booleans(), st.booleans(),
    st.integers(0, 99),
)
def test_what_instances_never_break(texts, length, short_seq_prob, whole_words, true_next, seed):
    run_settings = instances.Settings(
        max_seq_length=length, short_seq_prob=short_seq_prob, do_whole_word_mask=whole_words, dupe_factor=2,
        no_false_random_next=true_next, random_seed=seed,
    )
    made, counts, _ = _make([documents.Document(text) for text in texts], VOCABULARY, run_settings)
    flat = [[piece for sentence in text for piece in sentence] for text in texts]
    for instance in made:
        ids = list(instance.input_ids)
        for position, label in zip(instance.masked_lm_positions, instance.masked_lm_ids):
            ids[position] = label
        split = instance.segment_ids.index(1)
        a, b = ids[1:split - 1], ids[split:-1]
        assert len(ids) <= length and a and b
        assert (ids[0], ids[split - 1], ids[-1]) == (VOCABULARY.cls_id, VOCABULARY.sep_id, VOCABULARY.sep_id)
        assert any(_holds(document, a) for document in flat) and any(_holds(document, b) for document in flat)
    assert counts.instances == len(made)
    assert counts.random_next == sum(instance.is_random_next for instance in made)
    if true_next:
        assert counts.false_random_next == 0
        assert counts.random_next == 0 or len(texts) > 1
    else:
        assert counts.unpaired == counts.made_actual == 0
        assert made


def _holds(document, part):
    return any(document[start:start + len(part)] == part for start in range(len(document) - len(part) + 1))


def test_no_false_random_next_takes_what_follows():
    # Sentence n is the piece n + 3 four times, so what follows what can be read off an instance.
    text = [[n + 3] * 4 for n in range(40)]
    for seed in range(20):
        run_settings = instances.Settings(
            max_seq_length=19, no_false_random_next=True, random_seed=seed, dupe_factor=1, masked_lm_prob=0
        )
        made, counts, _ = _make([documents.Document(text)], VOCABULARY, run_settings)
        assert counts.made_actual > 0 and counts.random_next == counts.false_random_next == 0
        for instance in made:
            ids = list(instance.input_ids)
            ids[instance.masked_lm_positions[0]] = instance.masked_lm_ids[0]
            split = instance.segment_ids.index(1)
            assert 0 <= ids[split] - ids[split - 2] <= 1
        # Every sentence is used once, the last one alone at most dropped.
        assert counts.unpaired <= 1


def test_no_false_random_next_after_a_chunk_of_one_sentence_and_at_the_end():
    # Each sentence fills a chunk by itself, so every next is to be random, and there is no other document.
    run_settings = instances.Settings(
        max_seq_length=8, no_false_random_next=True, dupe_factor=1, short_seq_prob=0
    )
    for num_sentences, pairs, unpaired in ((1, 0, 1), (2, 1, 0), (5, 2, 1)):
        text = documents.Document([[3 + n] * 6 for n in range(num_sentences)])
        made, counts, _ = _make([text], VOCABULARY, run_settings)
        assert (len(made), counts.unpaired) == (pairs, unpaired)


def test_the_flag_changes_nothing_where_no_next_is_false():
    texts = [[[3 + n] * 5] * 7 for n in range(50)]
    runs = [
        _make([documents.Document(text) for text in texts], VOCABULARY,
              instances.Settings(max_seq_length=20, no_false_random_next=flag, dupe_factor=2))[0]
        for flag in (False, True)
    ]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("name, value, message", [
    ("max_seq_length", 4, "--max_seq_length=4: the least is 5"),
    ("max_predictions_per_seq", 0, "the least is 1"),
    ("dupe_factor", 0, "the least is 1"),
    ("masked_lm_prob", 1.5, "--masked_lm_prob=1.5: a probability lies between 0 and 1"),
    ("masked_lm_prob", float("nan"), "a probability"),
    ("short_seq_prob", -0.1, "a probability"),
])
def test_settings_out_of_range(name, value, message):
    with pytest.raises(UserError, match=message):
        instances.Settings(**{name: value})


def test_seeds_of_shards():
    run_settings = instances.Settings(random_seed=7)
    assert run_settings.of_shard(0) == run_settings
    seeds = [run_settings.of_shard(shard).random_seed for shard in range(100)]
    assert len(set(seeds)) == 100
    assert seeds[1] == 15263531989544755806  # a derived seed must not change from one version to the next


def test_doubts():
    assert not instances.Counts(documents=10, single_sentence_documents=9, instances=9, random_next=5).doubts()
    assert "19 of 20 documents are one sentence" in instances.Counts(
        documents=20, single_sentence_documents=19, instances=20, random_next=20
    ).doubts()[0]
    one, false = instances.Counts(documents=1, false_random_next=3, random_next=3).doubts()
    assert "one document" in one and "3 of 3 next sentences labelled random" in false
