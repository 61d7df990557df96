"""What the reports of all tasks are made of: cells of tables, tables in text, a picture of what is taken for what.

Shapes: C classes.
"""

import unicodedata
import warnings

import numpy as np

from bert_tf import files

CELL = 0.42  # inches of a class in the picture
MOST_NAMED = 70  # classes that have a name in the picture; of more, every second or third
MOST_NUMBERED = 40  # classes whose counts stand in the picture; of more, the colours alone
LONGEST_NAME = 24  # characters of a class in the picture


def escape(text):
    """A text as one cell of a table: tabs and ends of lines as \\t, \\n and \\r, a backslash doubled."""
    return text.translate({ord("\\"): "\\\\", ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r"})


def align(table):
    """Rows of cells as lines of text: the first column flush left, the others flush right."""
    def width(text):
        # Chinese characters and their like take two places.
        return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)

    widths = [max(map(width, column)) for column in zip(*table)]
    lines = []
    for first, *others in table:
        cells = [first + " " * (widths[0] - width(first))]
        cells += [" " * (most - width(cell)) + cell for cell, most in zip(others, widths[1:])]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)


def draw_confusion(path, counts, names, ylabel):
    """A picture of how many of each class (row) were taken for which (column), `counts` int64 [C, C or more].

    The colour is the part of a row, the number how many. `names` are those of the columns; the first C the rows', what
    these are is `ylabel`.
    """
    from matplotlib.figure import Figure

    height, width = counts.shape
    extent = min(height, MOST_NAMED) * CELL
    figure = Figure(figsize=(extent * width / height + 3.5, extent + 2.5), layout="constrained")
    axes = figure.add_subplot()
    parts = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(parts, cmap="Blues", vmin=0.0, vmax=1.0)
    figure.colorbar(image, label="part of the row", shrink=0.6)
    ticks = [name if len(name) <= LONGEST_NAME else name[:LONGEST_NAME - 1] + "…" for name in names]
    every = -(-width // MOST_NAMED)
    axes.set_yticks(range(0, height, every), ticks[:height:every], parse_math=False)
    axes.set_xticks(range(0, width, every), ticks[:width:every], parse_math=False, rotation=90)
    axes.set(xlabel="predicted", ylabel=ylabel)
    for row, column in np.argwhere(counts) if height <= MOST_NUMBERED else ():
        axes.text(column, row, counts[row, column], ha="center", va="center", fontsize=8 if height <= 12 else 6,
                  color="white" if parts[row, column] > 0.5 else "black", in_layout=False)
    with files.replacing(path, "wb") as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        figure.savefig(file, format="png", dpi=110)
