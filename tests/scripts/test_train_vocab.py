import os
import pathlib
import random
import subprocess
import sys

import pytest

from bert_tf import tokenization

pytest.importorskip("tokenizers")

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "train_vocab.py"


def train(*flags):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *flags], capture_output=True, text=True, cwd=SCRIPT.parent.parent,
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent)}, timeout=120,
    )


@pytest.fixture
def corpus(tmp_path):
    rng = random.Random(5)
    stems = ["".join(rng.choices("abcdefgiklmnoprstu", k=rng.randint(2, 6))) for _ in range(300)]
    lines = (" ".join(rng.choice(stems) + rng.choice(["", "ing", "ed", "s"]) for _ in range(9)) for _ in range(600))
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(lines) + "\nCafé Straße 中文中文, ÉTÉ's\x0bEnd\n", encoding="utf-8")
    return path


def test_vocabulary_loads_is_unique_and_deterministic(corpus, tmp_path):
    for name in ("a.txt", "b.txt"):
        done = train(f"--input_file={corpus}", f"--vocab_file={tmp_path / name}", "--vocab_size=600", "--num_unused=3")
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.txt").read_bytes() == (tmp_path / "b.txt").read_bytes()
    pieces = (tmp_path / "a.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert len(pieces) == len(set(pieces)) == 600
    assert pieces[:8] == [*tokenization.SPECIAL_TOKENS, "[unused0]", "[unused1]", "[unused2]"]
    assert "##ing" in pieces and "中" in pieces
    tokenizer = tokenization.FullTokenizer(str(tmp_path / "a.txt"))
    tokenization.check_casing(tokenizer.vocab, do_lower_case=True)
    assert tokenizer.vocab["[UNK]"] not in tokenizer.encode(corpus.read_text(encoding="utf-8"))
    assert tokenizer.vocab["[UNK]"] not in tokenizer.encode("Unseen words: 1984, #hash_tag? e-mail@example.org")


def test_cased_vocabulary_keeps_capitals_and_accents(corpus, tmp_path):
    done = train(f"--input_file={corpus}", f"--vocab_file={tmp_path / 'v'}", "--vocab_size=800", "--nodo_lower_case")
    assert done.returncode == 0, done.stderr
    pieces = (tmp_path / "v").read_text(encoding="utf-8").split("\n")
    assert "É" in pieces and "##é" in pieces and "C" in pieces


def test_rare_characters_are_left_out_and_counted(corpus, tmp_path):
    done = train(f"--input_file={corpus}", f"--vocab_file={tmp_path / 'v'}", "--vocab_size=500", "--limit_alphabet=10")
    assert done.returncode == 0 and "left out as too long or of rare characters" in done.stderr
    assert "中" not in (tmp_path / "v").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "content, flags, message",
    [
        (b"some words", ["--vocab_size=20"], "--vocab_size=20 is too small"),
        (b"a\nb\xff\n", [], "corpus:2: byte 0xff is not UTF-8"),
        (b" \n\n", [], "hold no words"),
        (None, [], "no file matches"),
        (b"a", ["--vocab_file=/no/such/folder/v"], "--vocab_file=/no/such/folder/v: there is no folder"),
        (b"a", ["--vocab_file="], "--vocab_file: the name is empty"),
        (b"a", ["--vocab_file=/"], "--vocab_file=/ is a folder"),
    ],
)
def test_mistakes_end_with_one_line_and_no_file(tmp_path, content, flags, message):
    path = tmp_path / "corpus"
    if content is not None:
        path.write_bytes(content)
    before = set(tmp_path.iterdir())
    done = train(f"--input_file={path}", f"--vocab_file={tmp_path / 'v'}", *flags)
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.count("error: ") == 1 and "Traceback" not in done.stderr
    assert set(tmp_path.iterdir()) == before


def test_a_vocabulary_is_not_written_over_the_text(corpus):
    before = corpus.read_bytes()
    link = corpus.with_name("link")
    link.symlink_to(corpus)
    for path in (corpus, link, corpus.parent / "." / corpus.name):
        done = train(f"--input_file={corpus}", f"--vocab_file={path}")
        assert done.returncode == 2 and "--vocab_file=" in done.stderr and len(done.stderr.splitlines()) == 1
    assert corpus.read_bytes() == before
