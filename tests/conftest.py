"""Where the recorded outputs of the original implementation lie.

`tests/goldens` travels with the project. Larger ones, real data and a trained checkpoint lie in a folder `shared`
beside the checkout (or at $BERT_TF_SHARED); tests that need one of its files skip where it is absent, and fail with
$BERT_TF_REQUIRE_SHARED set.
"""

import os
import pathlib

import pytest

from bert_tf.cli import app

# As the scripts do, before anything else imports TensorFlow; with two logical CPU devices, for tests of strategies.
app.load_tensorflow(virtual_devices=2)

from bert_tf import runtime  # noqa: E402

runtime.keep_operations_apart()

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "tests" / "goldens"
SHARED = pathlib.Path(os.environ.get("BERT_TF_SHARED", ROOT.parent / "shared"))

# The files that take longest come first, so that the processes that share the suite end at about the same time.
LONGEST = ("test_run_pretraining", "test_run_classifier", "test_modeling", "test_strategies", "test_run_squad",
           "test_readme", "test_run_ner", "test_tokenization", "test_quickstart", "test_checkpoint", "test_training")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory):
    """What scripts keep for the next run goes to a folder of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def goldens():
    return GOLDENS


@pytest.fixture(scope="session")
def shared():
    """`shared("data/glue")` is that path in the shared folder; the test skips where it is absent."""

    def find(path):
        found = SHARED / path
        if not found.exists():
            absent = pytest.fail if os.environ.get("BERT_TF_REQUIRE_SHARED") else pytest.skip
            absent(f"{path} is not in the shared folder {SHARED}")
        return found

    return find
