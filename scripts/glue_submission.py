"""Zips predictions of GLUE's test sets for its leaderboard.

    python scripts/glue_submission.py --output_file=submission.zip out/CoLA out/MNLI ...

Each folder, or a folder in it, holds what `run_classifier.py --do_predict` wrote: CoLA.tsv, MNLI-m.tsv and the like.
The leaderboard takes a file for each of the eleven test sets, with all rows, in order; anything else is refused here.
"""

import sys

from absl import flags

from bert_tf import files
from bert_tf.classification import submission
from bert_tf.cli import app
from bert_tf.errors import UserError


def define_flags(values):
    flags.DEFINE_string("output_file", None, "The zip file, to be written.", values, required=True)
    flags.DEFINE_bool("allow_missing", False, "Fill in a constant for the test sets that no folder has predictions "
                      "for.", flag_values=values)


def run(values, folders):
    if not folders:
        raise UserError("no folder is given: name those that run_classifier.py --do_predict wrote to")
    files.check_output(values.output_file, "output_file")
    submission.write_zip(values.output_file, folders, values.allow_missing)


if __name__ == "__main__":
    sys.exit(app.main(define_flags, run, description=__doc__, positional=True))
