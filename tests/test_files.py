import os

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf import files
from bert_tf.errors import UserError


def listing(folder):
    return sorted(os.listdir(folder))


class TestReplacing:
    def test_a_file_appears_whole_with_plain_line_ends(self, tmp_path):
        with files.replacing(tmp_path / "a") as file:
            file.write("é\n\u2028x\r\n")
            assert not (tmp_path / "a").exists()
        assert (tmp_path / "a").read_bytes() == "é\n\u2028x\r\n".encode() and listing(tmp_path) == ["a"]

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_a_failure_leaves_what_was_there(self, tmp_path, error):
        (tmp_path / "a").write_text("before")
        with pytest.raises(error):
            with files.replacing(tmp_path / "a", "wb") as file:
                file.write(b"half")
                raise error
        assert (tmp_path / "a").read_text() == "before" and listing(tmp_path) == ["a"]

    def test_no_folder_is_one_line(self, tmp_path):
        with pytest.raises(UserError, match="none/a: cannot be written .No such file"):
            with files.replacing(tmp_path / "none/a"):
                pass

    def test_a_folder_in_its_place_is_an_error_and_stays(self, tmp_path):
        (tmp_path / "a").mkdir()
        with pytest.raises((UserError, OSError)):
            with files.replacing(tmp_path / "a") as file:
                file.write("x")
        assert listing(tmp_path) == ["a"] and (tmp_path / "a").is_dir()


class TestReading:
    def test_lines_end_at_newlines_alone(self, tmp_path):
        (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\x0b\n\ntw\x0co\xe2\x80\xa8\x85".replace(b"\x85", b"\xc2\x85"))
        assert [number for number, _ in files.read_lines(tmp_path / "a")] == [1, 2, 3]
        assert files.read_text(tmp_path / "a") == "one\x0b\n\ntw\x0co\u2028\x85"

    @settings(max_examples=30, deadline=None)
    @given(text=st.text(st.characters(codec="utf-8", exclude_characters="\r\ufeff")))
    def test_any_text_comes_back(self, tmp_path_factory, text):
        path = tmp_path_factory.getbasetemp() / "any"
        path.write_bytes(text.encode())
        assert files.read_text(path) == text.removesuffix("\n")

    def test_what_is_not_utf_8_is_named_with_its_line(self, tmp_path):
        (tmp_path / "a").write_bytes(b"fine\nb\xffd\n")
        with pytest.raises(UserError, match="a:2: byte 0xff is not UTF-8"):
            files.read_text(tmp_path / "a")

    @pytest.mark.parametrize("name, reason", [("missing", "No such file"), ("folder", "Is a directory")])
    def test_what_cannot_be_read_is_named(self, tmp_path, name, reason):
        (tmp_path / "folder").mkdir()
        with pytest.raises(UserError, match=f"{name}: cannot be read .{reason}"):
            files.read_text(tmp_path / name)


class TestExpand:
    def test_patterns_keep_their_order_and_files_are_sorted(self, tmp_path):
        for name in ("b2", "b1", "a1"):
            (tmp_path / name).write_text("x")
        found = files.expand(f"{tmp_path}/b*, {tmp_path}/a1", "input_file")
        assert [os.path.basename(path) for path in found] == ["b1", "b2", "a1"]

    @pytest.mark.parametrize("patterns", ["", ",", "{}/none*", "{}/a,", "{}/folder", "{}/*"])
    def test_what_stands_for_no_file_is_refused_by_flag(self, tmp_path, patterns):
        (tmp_path / "a").write_text("x")
        (tmp_path / "folder").mkdir()
        with pytest.raises(UserError, match="--input_file"):
            files.expand(patterns.format(tmp_path), "input_file")


def test_folders_and_removal(tmp_path):
    files.make_folder(tmp_path / "a/b")
    files.make_folder(tmp_path / "a/b")
    (tmp_path / "a/file").write_text("x")
    with pytest.raises(UserError, match="file.*cannot be created"):
        files.make_folder(tmp_path / "a/file")
    with pytest.raises(UserError, match="cannot be created"):
        files.make_folder(tmp_path / "a/file/below")
    files.remove(tmp_path / "a/file")
    files.remove(tmp_path / "a/file")
    assert listing(tmp_path / "a") == ["b"] and files.exists(tmp_path / "a")


def test_remote_paths_are_told_by_their_scheme():
    assert files.is_remote("gs://bucket/file") and not files.is_remote("/a/b:c") and not files.is_remote("a//b")


def test_every_carriage_return_is_dropped_as_the_originals_reader_did(tmp_path):
    (tmp_path / "a").write_bytes(b"ab\rcd ef\r\n\rx\n")
    with tf.io.gfile.GFile(str(tmp_path / "a"), "r") as theirs:
        assert [line for _, line in files.read_lines(tmp_path / "a")] == [line.rstrip("\n") for line in theirs]
    assert [line for _, line in files.read_lines(tmp_path / "a")] == ["abcd ef", "x"]


@pytest.mark.parametrize("path, message", [
    ("", "the name is empty"), ("folder", "is a folder"), ("no/x", "there is no folder"), ("in.txt", "is also read"),
    ("folder/../in.txt", "is also read"), ("link", "is also read"), ("/dev/null", "is a device")])
def test_outputs_that_cannot_be_written_are_refused_before_work(path, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("folder")
    open("in.txt", "w").close()
    os.symlink("in.txt", "link")
    with pytest.raises(UserError, match=message):
        files.check_output(path, "output_file", ["in.txt"])
    assert files.check_output("new.txt", "output_file", ["in.txt"]) is None


def test_a_link_is_followed_and_a_rename_that_fails_is_one_line(tmp_path):
    os.symlink(tmp_path / "real", tmp_path / "link")
    with files.replacing(tmp_path / "link") as file:
        file.write("x")
    assert os.path.islink(tmp_path / "link") and (tmp_path / "real").read_text() == "x"
    os.mkdir(tmp_path / "folder")
    with pytest.raises(UserError, match="folder: cannot be written"), files.replacing(tmp_path / "folder"):
        pass
    assert sorted(os.listdir(tmp_path)) == ["folder", "link", "real"]
