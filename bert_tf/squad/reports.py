"""Where answers are wrong: the table of mistakes.

Shapes: N questions.
"""

import logging

import numpy as np

from bert_tf import files
from bert_tf.reporting import escape

logger = logging.getLogger("bert_tf")

NUM_MISTAKES = 1000


def write_mistakes(path, examples, answers, num_windows, scores, count=NUM_MISTAKES):
    """Writes a row for each of N questions whose answer is no exact match, the worst and then the surest first.

    `answers` belong to the `SquadExample`s in their order, as do `num_windows` int [N], windows that the context was
    read in, and `scores` float64 [2, N], exact match and F1. `probability` is that of the answer given; `null_odds`
    stands in the table where they are known. Different gold answers are parted by "|". Of more than `count` mistakes
    that many are written, which is said.
    """
    exact, f1 = scores
    probabilities = np.array([answer.probability for answer in answers])
    wrong = np.flatnonzero(exact < 1)
    wrong = wrong[np.lexsort([-probabilities[wrong], f1[wrong]])]
    if len(wrong) > count:
        logger.info("%s: the first %d of %d mistakes", path, count, len(wrong))
    with_odds = any(answer.null_odds is not None for answer in answers)
    header = ["id", "question", "gold_answers", "predicted", "exact_match", "f1", "windows", "probability"]
    with files.replacing(path) as file:
        file.write("\t".join(header + ["null_odds"] * with_odds) + "\n")
        for number in wrong[:count].tolist():
            example, answer = examples[number], answers[number]
            golds = "|".join(escape(gold).replace("|", "\\|") for gold in dict.fromkeys(example.answers))
            row = [escape(example.qas_id), escape(example.question_text), golds, escape(answer.text),
                   f"{exact[number]:.0f}", f"{f1[number]:.4f}", str(num_windows[number]),
                   f"{probabilities[number]:.6f}"]
            if with_odds:
                row.append(f"{answer.null_odds:.6f}")
            file.write("\t".join(row) + "\n")
