import importlib.util
import itertools
import pathlib

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/run_matrix.py"
SPEC = importlib.util.spec_from_file_location("run_matrix", SCRIPT)
run_matrix = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(run_matrix)


def make_results(**others):
    cells = itertools.product(run_matrix.STRATEGIES, run_matrix.PRECISIONS, run_matrix.COLUMNS)
    results = dict.fromkeys(cells, "works")
    for name, result in others.items():
        results[name, "float16", run_matrix.COLUMNS[0]] = result
    return results


def test_the_table_has_a_cell_for_every_combination():
    assert len(make_results()) == 72
    lines = run_matrix.make_table(make_results()).splitlines()
    assert len(lines) == 2 + 9 + 1 and "\n".join(lines).count("works") == 72
    assert lines[-1].startswith("| TPU") and lines[-1].count("not run") == 8


def test_what_does_not_work_has_a_note_of_its_own():
    table = run_matrix.make_table(make_results(one="refused", mirrored="refused", multi_worker="it hung"))
    assert table.count("no (1)") == 2 and table.count("no (2)") == 1
    assert table.endswith("\n(1) refused\n\n(2) it hung")


def test_the_table_replaces_the_one_before(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{run_matrix.BEGIN}\nold\n{run_matrix.END}\nafter\n")
    run_matrix.replace(readme, "new")
    assert readme.read_text() == f"before\n{run_matrix.BEGIN}\n\nnew\n\n{run_matrix.END}\nafter\n"
