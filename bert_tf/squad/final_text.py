"""A predicted text, which is put together from pieces, as the context writes it: capitals, accents and spacing.

Source: the original's `get_final_text`. It tokenizes the words that the answer came from, looks for the predicted text
in the result, and carries the place over by counting the characters that are no blanks. Where that cannot be done the
answer is all of those words.
"""

from bert_tf.tokenization import BasicTokenizer


def join_pieces(pieces):
    """The text that an iterable of pieces comes to: "##" joins a piece to the one before it."""
    text = " ".join(pieces).replace(" ##", "").replace("##", "")
    return " ".join(text.split())


def get_final_text(pred_text, orig_text, do_lower_case):
    """The part of `orig_text` that tokenizes to `pred_text`, all of it where none is found; as the original's."""
    basic_tokenizer = BasicTokenizer(do_lower_case)
    words = orig_text.split(" ")
    return cut(words, *locate(pred_text, words, lambda word: " ".join(basic_tokenizer.fast_tokenize(word))))


def locate(pred_text, words, normalize):
    """Where `pred_text` stands in `words`: `(word, character in it)` of its first character and behind its last.

    `words` hold no blank; `normalize` gives the tokens of a word, with blanks between them. Words are tokenized one by
    one, and so once for all answers: none depends on its neighbours.
    """
    everything = (0, 0), (len(words) - 1, len(words[-1]))
    normalized = " ".join(filter(None, map(normalize, words)))
    if normalized == pred_text and words[0] and words[-1]:  # the usual case
        return everything
    at = normalized.find(pred_text)
    if at < 0 or not pred_text or pred_text[0] == " " or pred_text[-1] == " ":
        return everything
    if len(normalized) - normalized.count(" ") != sum(map(len, words)):
        return everything
    end = at + len(pred_text)
    start_word, start = _find_character(words, at - normalized.count(" ", 0, at))
    end_word, last = _find_character(words, end - 1 - normalized.count(" ", 0, end))
    return (start_word, start), (end_word, last + 1)


def _find_character(words, number):
    """`(word, character in it)` of a character by its number among all of `words`."""
    for word, text in enumerate(words):
        if number < len(text):
            return word, number
        number -= len(text)
    raise IndexError(number)


def cut(words, start, end):
    """The text of `words`, with blanks between them, from `start` to `end` as `locate` gives them."""
    (start_word, first), (end_word, last) = start, end
    if start_word == end_word:
        return words[start_word][first:last]
    return " ".join([words[start_word][first:], *words[start_word + 1:end_word], words[end_word][:last]])
