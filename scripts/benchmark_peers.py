"""Trains KerasHub's or Hugging Face's BERT on given rows and prints how fast, as one JSON line.

    python scripts/benchmark_peers.py job.json

The part of `benchmark_training.py` that runs in a Python of its own, where only NumPy and the library need to be
installed. Both train with AdamW, a decay of 0.01 and gradients clipped to a global norm of 1, weights at random.

Shapes: N rows, B batch, S sequence, P masked positions.
"""

import json
import sys
import time

import numpy as np

CUT = ("input_ids", "input_mask", "segment_ids")  # arrays that are padded to max_seq_length
SIZE = 8  # lengths are rounded up to a multiple of it


def batches(rows, options, batch_size, rng):
    """Yields the batches of one pass over the rows: arrays by name, all rows once.

    Padding "fixed": to max_seq_length, rows in a random order. "longest": rows of like length together, each batch
    padded to its longest, batches in a random order.
    """
    lengths = rows["input_mask"].sum(axis=1)
    order = rng.permutation(len(lengths))
    if options["padding"] == "longest":
        order = order[np.argsort(lengths[order], kind="stable")]
    for numbers in rng.permutation(order.reshape(-1, batch_size)):
        length = rows["input_ids"].shape[1]
        if options["padding"] == "longest":
            length = min(length, -(-int(lengths[numbers].max()) // SIZE) * SIZE)
        yield {name: values[numbers, :length] if name in CUT else values[numbers] for name, values in rows.items()}


def measure(one_pass, num_rows, seconds):
    """Examples per second over whole passes that take at least `seconds`; a first pass is not counted."""
    one_pass()
    passes, started = 0, time.perf_counter()
    while not passes or time.perf_counter() - started < seconds:
        one_pass()
        passes += 1
    return passes * num_rows / (time.perf_counter() - started)


def keras_hub(job, rows):
    """A pass of `fit` on KerasHub's classifier or masked language model (it has no next sentence loss)."""
    import keras
    import keras_hub
    import tensorflow as tf

    config, options = job["config"], job["options"]
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=config["vocab_size"], num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"], hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"], max_sequence_length=config["max_position_embeddings"],
        dropout=config["hidden_dropout_prob"], dtype=options["dtype"])
    pretraining = "masked_lm_ids" in rows
    model = (keras_hub.models.BertMaskedLM(backbone, preprocessor=None) if pretraining else
             keras_hub.models.BertTextClassifier(backbone, job["num_classes"], preprocessor=None))
    model.compile(keras.optimizers.AdamW(5e-5, weight_decay=0.01, global_clipnorm=1.0),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=options["jit_compile"])
    rng = np.random.default_rng(0)

    def features_and_labels():
        for batch in batches(rows, options, job["batch_size"], rng):
            features = {"token_ids": batch["input_ids"], "segment_ids": batch["segment_ids"],
                        "padding_mask": batch["input_mask"]}
            if pretraining:
                features["mask_positions"] = batch["masked_lm_positions"]
                yield features, batch["masked_lm_ids"], batch["masked_lm_weights"]
            else:
                yield features, batch["label_ids"]

    fixed = options["padding"] == "fixed"
    signature = tf.nest.map_structure(
        lambda array: tf.TensorSpec(array.shape if fixed else [None] * array.ndim, array.dtype),
        next(features_and_labels()))
    data = tf.data.Dataset.from_generator(features_and_labels, output_signature=signature).prefetch(4)
    versions = f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, tensorflow {tf.__version__}"
    return lambda: model.fit(data, verbose=0), versions


def pytorch(job, rows):
    """A pass over Hugging Face's classifier, or its model for pretraining (which scores all positions)."""
    import torch
    import transformers

    options = job["options"]
    config = transformers.BertConfig(**job["config"], num_labels=job["num_classes"])
    pretraining = "masked_lm_ids" in rows
    make = transformers.BertForPreTraining if pretraining else transformers.BertForSequenceClassification
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = make(config).to(device).train()
    forward = torch.compile(model, dynamic=True) if options["compile"] else model
    optimizer = torch.optim.AdamW(model.parameters(), 5e-5, weight_decay=0.01, fused=True)
    rng = np.random.default_rng(0)

    def one_pass():
        for batch in batches(rows, options, job["batch_size"], rng):
            if pretraining:
                labels = {"labels": scatter(batch), "next_sentence_label": batch["next_sentence_labels"]}
            else:
                labels = {"labels": batch["label_ids"]}
            inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["input_mask"],
                      "token_type_ids": batch["segment_ids"], **labels}
            inputs = {name: torch.from_numpy(array).long().to(device) for name, array in inputs.items()}
            with torch.autocast(device, torch.bfloat16, enabled=options["autocast"]):
                loss = forward(**inputs).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        loss.item()  # waits for the device

    return one_pass, f"torch {torch.__version__}, transformers {transformers.__version__}"


def scatter(batch):
    """The masked pieces [B, S] at their positions, -100, which is no label, elsewhere."""
    labels = np.full_like(batch["input_ids"], -100)
    row, place = np.nonzero(batch["masked_lm_weights"])
    labels[row, batch["masked_lm_positions"][row, place]] = batch["masked_lm_ids"][row, place]
    return labels


LIBRARIES = {"KerasHub": keras_hub, "PyTorch": pytorch}


def main(path):
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    rows = dict(np.load(job["rows"]))
    try:
        one_pass, versions = LIBRARIES[job["library"]](job, rows)
    except ImportError as error:
        print(json.dumps({"skipped": str(error)}))
        return
    speed = measure(one_pass, len(rows["input_ids"]), job["seconds"])
    print(json.dumps({"examples_per_second": speed, "versions": versions}))


if __name__ == "__main__":
    main(sys.argv[1])
