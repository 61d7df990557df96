import pathlib
import subprocess
import sys
import zipfile

import numpy as np

from bert_tf.classification import submission, tasks

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/glue_submission.py"


def call(folder, *arguments):
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, cwd=folder,
                          timeout=60)


def test_folders_to_a_zip_file(tmp_path):
    (tmp_path / "WNLI").mkdir()
    submission.write(tmp_path / "WNLI/WNLI.tsv", tasks.find("WNLI"), np.ones(146, int), np.arange(2, 148))
    done = call(tmp_path, "--output_file=a.zip", "WNLI")
    assert done.returncode == 2 and done.stderr.startswith("error: no CoLA.tsv, SST-2.tsv, ")
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "a.zip").exists()
    done = call(tmp_path, "--output_file=a.zip", "--allow_missing", "WNLI")
    assert done.returncode == 0 and "WNLI.tsv: 146 rows from WNLI/WNLI.tsv" in done.stderr
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.read("WNLI.tsv").splitlines()[1] == b"0\t1" and len(archive.namelist()) == 11


def test_what_is_refused(tmp_path):
    for arguments, part in (([], "--output_file"), (["--output_file=a.zip"], "no folder is given"),
                            (["--output_file=a.zip", "none"], "none: no such folder"),
                            (["--output_file=none/a.zip", "."], "there is no folder none")):
        done = call(tmp_path, *arguments)
        assert done.returncode == 2 and part in done.stderr and len(done.stderr.splitlines()) == 1
