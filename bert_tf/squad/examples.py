"""A file in SQuAD's JSON to examples, question by question.

Characters are counted from 0 in a context as the file has it, words from 0 between the original's white space.
"""

import bisect
import collections
import json
import logging
import re
import typing

from bert_tf import files
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

NAMED_PLACES = 5
# Every other white space, such as the no-break space, is inside a word of the original's.
_WORD = re.compile("[^ \t\r\n\u202f]+")
_KINDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number", bool: "true or false"}


class Context(typing.NamedTuple):
    """A paragraph, one object for all its questions.

    `doc_tokens` are the words of `text`, `word_starts` the characters of `text` that they begin at.
    """

    text: str
    doc_tokens: list[str]
    word_starts: list[int]

    @classmethod
    def of(cls, text):
        """The context that a text is."""
        words = list(_WORD.finditer(text))
        return cls(text, [word[0] for word in words], [word.start() for word in words])

    def word_at(self, character):
        """The word that a character is in or, white space, comes after; -1 before the first."""
        return bisect.bisect_right(self.word_starts, character) - 1


class SquadExample(typing.NamedTuple):
    """A question about a context, with what is known of its answer.

    `answers` are all the file's, as written; () for a question that `is_impossible` (2.0 only) or has none.
    `orig_answer_text`, its first and last word in the context and `answer_start`, the character of the context that it
    was found at, are what training learns; None where there is none.
    `where` is the question's place in the file, such as "data[0].paragraphs[3].qas[1]".
    """

    qas_id: str
    question_text: str
    context: Context
    answers: tuple[str, ...] = ()
    is_impossible: bool = False
    start_position: int | None = None
    end_position: int | None = None
    orig_answer_text: str | None = None
    answer_start: int | None = None
    where: str = ""


def read(path, is_training, version_2_with_negative, is_scored=True):
    """The list of a file's `SquadExample`s, in its order.

    For training, of several answers the first is learned, from where its text stands nearest to its `answer_start`,
    whatever the white space in it; a question without an answer is left out. `UserError` with the place in the file
    for JSON of another shape, an id that stands twice, half a surrogate pair, and for questions that are impossible in
    a file to be trained on or scored without `version_2_with_negative`; also for a file without a question. What is
    left out or doubtful is counted and said in one line at the end.
    """
    notes, places, made = collections.defaultdict(list), {}, []
    for qa, context, where in _questions(path, notes):
        example = _example(path, qa, context, where, version_2_with_negative, notes)
        if example.qas_id in places:
            raise UserError(f"{path}: {where}.id is {_shown(example.qas_id)}, as is that of "
                            f"{places[example.qas_id]}; give each question an id of its own")
        places[example.qas_id] = where
        if qa.get("is_impossible") and not version_2_with_negative:
            if is_training or is_scored:
                raise UserError(f"{path}: {where} is impossible to answer, as in SQuAD 2.0; pass "
                                "--version_2_with_negative")
            notes["impossible questions, answered all the same without --version_2_with_negative"].append(where)
        if not example.answers and not example.is_impossible:
            notes["questions without an answer" + ", left out" * is_training].append(where)
        if is_training and not example.is_impossible:
            example = _with_span(path, example, qa, notes)
        if example:
            made.append(example)
    _say(path, made, notes)
    if not made:
        raise UserError(f"{path}: holds no question" + " with an answer to learn" * bool(places))
    if version_2_with_negative and any(example.answers for example in made):
        if not any(example.is_impossible for example in made):
            logger.warning("%s: no question is impossible to answer; is --version_2_with_negative meant?", path)
    return made


def _questions(path, notes):
    """Yields `(qa, context, where)` for every question of a file, `qa` an object."""
    content = files.read_json_object(path)
    for article, at_article in _items(path, content, "data", ""):
        for paragraph, at_paragraph in _items(path, article, "paragraphs", f"{at_article}."):
            context = Context.of(_member(path, paragraph, "context", str, f"{at_paragraph}."))
            if not context.doc_tokens:
                notes["contexts without a word"].append(at_paragraph)
            for qa, at_qa in _items(path, paragraph, "qas", f"{at_paragraph}."):
                yield qa, context, at_qa


def _items(path, parent, name, where):
    """Yields `(object, its place)` for those in the list `parent[name]`; `where` is what its place begins with."""
    for number, item in enumerate(_member(path, parent, name, list, where)):
        place = f"{where}{name}[{number}]"
        yield _checked(path, item, dict, place), place


def _member(path, parent, name, kind, where):
    """`parent[name]`, of the type `kind`; `UserError` where it is missing or of another."""
    if name not in parent:
        raise UserError(f"{path}: {where}{name} is missing")
    return _checked(path, parent[name], kind, f"{where}{name}")


def _checked(path, value, kind, place):
    """`value`, if its type is `kind` and it can be written as UTF-8, else `UserError`."""
    if type(value) is not kind:
        raise UserError(f"{path}: {place} is {_shown(value)}, not {_KINDS[kind]}")
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{path}: {place} holds half a surrogate pair ({value[error.start]!r}), which is no "
                            "character; take it out") from error
    return value


def _example(path, qa, context, where, version_2_with_negative, notes):
    """The `SquadExample` of a question, nothing known yet of what training learns."""
    question = _member(path, qa, "question", str, f"{where}.")
    if not question.strip():
        notes["questions without a text"].append(where)
    answers = [] if "answers" not in qa else [
        _member(path, answer, "text", str, f"{place}.") for answer, place in _items(path, qa, "answers", f"{where}.")]
    if "is_impossible" in qa:
        is_impossible = _member(path, qa, "is_impossible", bool, f"{where}.") and version_2_with_negative
    else:
        is_impossible = version_2_with_negative and "answers" in qa and not answers
        if is_impossible:
            notes["questions that have no answers and do not say is_impossible, taken as impossible"].append(where)
    if is_impossible and answers:
        notes["impossible questions whose answers are not used"].append(where)
    return SquadExample(_member(path, qa, "id", str, f"{where}."), question, context,
                        () if is_impossible else tuple(answers), is_impossible, where=where)


def _with_span(path, example, qa, notes):
    """`example` with the words of its first answer; None, which is noted, where it has none in its context."""
    if not example.answers:
        return None
    if len(example.answers) > 1:
        notes["questions with several answers, of which the first is learned"].append(example.where)
    text = example.context.text
    spans = []
    for answer, place in _items(path, qa, "answers", f"{example.where}."):
        answer_start = _member(path, answer, "answer_start", int, f"{place}.")
        span = find_answer(text, answer["text"], answer_start)
        if span is None:
            notes["answers that are not in their context"].append(place)
        elif span[0] != answer_start:
            notes["answers that are not at their answer_start, taken from the nearest place"].append(place)
        spans.append(span)
    if spans[0] is None:
        notes["questions left out whose answer is not in their context"].append(example.where)
        return None
    start, end = spans[0]
    return example._replace(start_position=max(example.context.word_at(start), 0),
                            end_position=max(example.context.word_at(end - 1), 0),
                            orig_answer_text=example.answers[0], answer_start=start)


def find_answer(text, answer, answer_start):
    """`(start, end)` of the characters in `text` where `answer` stands nearest to `answer_start`; None if nowhere.

    Away from `answer_start` any white space stands for any other, and that around the answer does not count.
    """
    if not answer.strip():
        return None
    if answer_start >= 0 and text.startswith(answer, min(answer_start, len(text))):
        return answer_start, answer_start + len(answer)
    words = r"\s+".join(map(re.escape, answer.split()))
    found = [match.span(1) for match in re.finditer(f"(?=({words}))", text)]
    return min(found, key=lambda span: abs(span[0] - answer_start), default=None)


def _shown(value):
    """A value of a JSON file as a message names it."""
    if isinstance(value, (dict, list)):
        return _KINDS[type(value)]
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _say(path, made, notes):
    """Logs how many questions a file gave and what `notes`, places by a phrase, holds; nothing without any."""
    found = [f"{len(places)} {phrase} ({', '.join(places[:NAMED_PLACES])}{', ...' * (len(places) > NAMED_PLACES)})"
             for phrase, places in notes.items()]
    if found:
        logger.warning("%s: %d questions; %s", path, len(made), "; ".join(found))
