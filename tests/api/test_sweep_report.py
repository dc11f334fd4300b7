import pyarrow

from dippm.api.sweep_report import SweepFailure, SweepReport, SweepTally
from dippm.api.sweep_rows import COLUMNS, make_schema


def table(*rows: tuple[str, str | None, str | None]) -> pyarrow.Table:
    given = [
        {"model": model, "status": "ok" if code is None else "error", "error_code": code, "error": error}
        for model, code, error in rows
    ]
    return pyarrow.table({name: [row.get(name) for row in given] for name in COLUMNS}, schema=make_schema())


def test_errors_are_counted_by_code_with_the_first_of_each() -> None:
    tally = SweepTally()
    tally.add(table(("a", None, None), ("b", "model.missing", "no b"), ("c", "worker.died", "c died")))
    tally.add(table(("d", "worker.died", "d died"), ("e", None, None)))
    assert (tally.rows, tally.errors) == (5, 3)
    assert tally.failures == (
        SweepFailure(code="worker.died", rows=2, model="c", error="c died"),
        SweepFailure(code="model.missing", rows=1, model="b", error="no b"),
    )


def test_a_report_reads_as_text_and_as_json() -> None:
    failure = SweepFailure(code="worker.died", rows=2, model="c", error="c died")
    report = SweepReport(
        out="t.parquet", models=5, rows=1234, errors=2, resumed_models=3, workers=2, seconds=1.2345, failures=(failure,)
    )
    assert "1,234 rows of 5 models, 3 of them by an earlier run, 2 errors, 1.2 s" in str(report)
    assert "worker.died: c: c died" in str(report)
    said = report.to_dict()
    assert (said["seconds"], said["resumed_models"]) == (1.23, 3)
    assert said["failures"] == [{"code": "worker.died", "rows": 2, "model": "c", "error": "c died"}]
