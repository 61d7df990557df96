import re

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from bert_tf import reporting


@hypothesis.given(st.text(st.sampled_from("\\\t\n\ratnr北 ")))
def test_a_cell_holds_any_text_in_one_line_and_gives_it_back(text):
    cell = reporting.escape(text)
    assert not set(cell) & set("\t\n\r")
    meant = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}
    assert re.sub(r"\\(.)", lambda match: meant[match[1]], cell) == text


def test_a_table_by_hand():
    assert reporting.align([["", "f1", "examples"], ["北京", "0.5", "2"], ["ab", "", "10000000"]]) == (
        "       f1  examples\n北京  0.5         2\nab         10000000\n")


@pytest.mark.parametrize("height, width", [(1, 2), (42, 42)])
def test_the_picture_has_room_for_all_classes(tmp_path, height, width):
    image = pytest.importorskip("matplotlib.image")
    names = ["$x", "a_{b}$", "地名", "a class of a great many characters", *map(str, range(width))][:width]
    counts = np.random.RandomState(4).randint(0, 2000, [height, width])
    reporting.draw_confusion(tmp_path / "c.png", counts, names, "gold")
    pixels = image.imread(tmp_path / "c.png").shape
    assert pixels[0] >= height * 40 and pixels[1] >= width * 40
