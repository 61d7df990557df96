"""The one truncation of a pair, the one `[CLS] a [SEP] b [SEP]` and the one padding, on lists of ids.

Pretraining truncates its pairs at random from both ends (`pretraining/instances.py`); everything else cuts here.
"""


def truncate_seq_pair(a, b, max_length):
    """Shortens the lists `a` and `b` in place, from their ends, to `max_length` items together.

    The longer list gives first; of two equally long ones `b` gives (so that with `b` empty `a` alone is cut).
    Returns the number of items dropped. Source: the original's truncation of classifier pairs.
    """
    excess = len(a) + len(b) - max(max_length, 0)
    if excess <= 0:
        return 0
    # The longer list first gives until both are level; what is left to give then alternates, b before a.
    level = min(excess, abs(len(a) - len(b)))
    from_a = level if len(a) > len(b) else 0
    from_a += (excess - level) // 2
    del a[len(a) - from_a:]
    del b[len(b) - (excess - from_a):]
    return excess


def pack(a, b, cls_id, sep_id):
    """`([CLS] a [SEP] b [SEP], segment_ids)` for id lists `a` and `b`; without its second part where `b` is None.

    Segment 0 is `[CLS] a [SEP]`, segment 1 is `b [SEP]`.
    """
    ids = [cls_id, *a, sep_id]
    segment_ids = [0] * len(ids)
    if b is not None:
        ids += [*b, sep_id]
        segment_ids += [1] * (len(b) + 1)
    return ids, segment_ids


def pad(values, length, value=0):
    """`values` with `value` appended up to `length` items, as a new list; `ValueError` if it is longer already."""
    if len(values) > length:
        raise ValueError(f"{len(values)} values do not fit into {length}")
    return [*values, *[value] * (length - len(values))]
