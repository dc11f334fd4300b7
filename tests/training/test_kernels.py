import numpy as np
import pytest

from dippm.costs.kernels import Family, GemmProblem
from dippm.datasets.kernels import KernelRows
from dippm.devices import find_device
from dippm.evaluation.kernels import features_of_rows

torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")

from dippm.training.kernels import Settings, to_onnx, train_network  # noqa: E402 - after the skips


def _rows(count: int = 600) -> KernelRows:
    """Rows that a perfect roofline at 70 % would give."""
    rng = np.random.default_rng(0)
    shape = rng.integers(16, 4096, size=(count, 3))
    problem = GemmProblem.of(m=shape[:, 0], n=shape[:, 2], k=shape[:, 1])
    device = find_device("T4")
    return KernelRows(
        family=Family.LINEAR,
        problem=problem,
        time_ms=0.05 + problem.flops / (0.7 * device.peak_tflops["fp32"] * 1e9),
        device=np.full(count, "T4"),
        table=np.full(count, "linear"),
        shape=shape,
        position=np.arange(count) / 1000.0,
    )


SETTINGS = (Settings(hidden=(16,), epochs=30, batch=64), Settings(hidden=(16,), epochs=30, batch=64, noise=0.1))


def test_training_is_repeatable_and_learns() -> None:
    rows = _rows()
    features = features_of_rows(rows)
    chosen = np.arange(len(rows)) < 500
    first, second = (
        train_network(rows, features, chosen, kind="measured", seed=5, settings=SETTINGS).network for _ in range(2)
    )
    np.testing.assert_array_equal(first.log_ratio(features.matrix), second.log_ratio(features.matrix))
    predicted = features.baseline_ms * np.exp(first.log_ratio(features.matrix))
    assert np.median(np.abs(predicted / rows.time_ms - 1)[~chosen]) < 0.1


@pytest.mark.parametrize("epochs", [1, 9, 10, 11])
def test_a_training_of_few_steps_ends_too(epochs: int) -> None:
    rows = _rows(64)
    chosen = np.ones(len(rows), dtype=bool)
    options = (Settings(hidden=(16,), epochs=epochs, batch=64),)
    trained = train_network(rows, features_of_rows(rows), chosen, kind="measured", seed=0, settings=options)
    assert np.isfinite(trained.network.log_ratio(features_of_rows(rows).matrix)).all()


def test_onnx_and_numpy_agree() -> None:
    rows = _rows()
    features = features_of_rows(rows)
    trained = train_network(rows, features, np.ones(len(rows), dtype=bool), kind="transfer", seed=1, settings=SETTINGS)
    session = onnxruntime.InferenceSession(
        to_onnx(trained.network, features=features.matrix.shape[1]), providers=["CPUExecutionProvider"]
    )
    matrix = features.matrix * np.linspace(0.2, 3.0, len(rows), dtype=np.float32)[:, None]
    (result,) = session.run(None, {"features": matrix})
    np.testing.assert_allclose(result, trained.network.log_ratio(matrix), atol=2e-4)
    assert trained.drift.added_ms == {}
