"""The NumPy reference against plain loops and known values: it is what everything else is measured by."""

from __future__ import annotations

import math

import numpy as np
import pytest
from smoke_kit import inside

reference = inside("reference")


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 1), (3, 2)])
def test_convolution_against_loops(stride: int, padding: int) -> None:
    rng = np.random.RandomState(0)
    x, w = rng.randn(2, 3, 9, 7), rng.randn(4, 3, 3, 2)
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    got = reference.conv2d(x, w, stride, padding)
    height, width = (9 + 2 * padding - 3) // stride + 1, (7 + 2 * padding - 2) // stride + 1
    assert got.shape == (2, 4, height, width)
    for i in range(height):
        for j in range(width):
            patch = padded[1, :, i * stride : i * stride + 3, j * stride : j * stride + 2]
            assert got[1, 2, i, j] == pytest.approx(float((patch * w[2]).sum()))


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads"), [(8, 3, 2, (0, 1)), (7, 3, 2, (1, 1)), (7, 4, 2, (1, 2))]
)
def test_same_padding(size: int, kernel: int, stride: int, pads: tuple[int, int]) -> None:
    assert reference.same_padding(size, kernel, stride) == pads


def test_cross_entropy_of_known_probabilities() -> None:
    logits = np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])) + 5
    assert reference.softmax_cross_entropy(logits, np.array([0, 2])) == pytest.approx(
        -(math.log(0.7) + math.log(0.8)) / 2
    )


def test_attention_with_one_dominant_key_returns_its_value() -> None:
    q = np.array([[[[100.0, 0.0]]]])
    k = np.array([[[[1.0, 0.0], [0.0, 1.0]]]])
    v = np.array([[[[3.0, 4.0], [5.0, 6.0]]]])
    assert reference.attention(q, k, v)[0, 0, 0] == pytest.approx([3.0, 4.0])


def test_norms_have_mean_zero_and_variance_one() -> None:
    x = np.random.RandomState(1).randn(6, 4, 5, 5) * 3 + 2
    out, mean, var = reference.batch_norm(x, np.ones(4), np.zeros(4))
    assert out.mean(axis=(0, 2, 3)) == pytest.approx(np.zeros(4), abs=1e-9)
    assert mean == pytest.approx(x.mean(axis=(0, 2, 3))) and var == pytest.approx(x.var(axis=(0, 2, 3)))
    rows = reference.layer_norm(x.reshape(-1, 25), np.ones(25), np.zeros(25))
    assert rows.var(axis=-1) == pytest.approx(np.ones(24), rel=1e-4)


def test_momentum_conventions() -> None:
    assert reference.running_mean(1.0, 2.0, 0.9) == pytest.approx(1.1)
    assert reference.running_mean(1.0, 2.0, 0.99) == pytest.approx(1.01)


def test_resize_keeps_a_ramp_and_antialiasing_averages() -> None:
    ramp = np.arange(8.0).reshape(1, 1, 1, 8) * np.ones((1, 1, 4, 1))
    assert reference.resize_bilinear(ramp, 4, 16)[0, 0, 0, 2:-2] == pytest.approx(np.arange(16)[2:-2] / 2 - 0.25)
    stripes = np.tile([0.0, 1.0], 8).reshape(1, 1, 1, 16)
    plain = reference.resize_bilinear(stripes, 1, 4)
    smooth = reference.resize_bilinear(stripes, 1, 4, antialias=True)
    assert np.abs(smooth - 0.5).max() < 0.1
    assert np.abs(plain - smooth).max() < 0.2 and not np.allclose(plain, smooth)


def test_the_reference_mlp_follows_its_numerical_gradient() -> None:
    x, y, weights = reference.mlp_task(3)
    _, moved = reference.mlp_train(x, y, weights, 1, 1.0)
    step = 1e-5
    for which, index in ((0, (2, 5)), (1, (7,)), (2, (4, 1)), (3, (2,))):
        shifted = [w.astype(np.float64) for w in weights]
        losses = []
        for sign in (1, -1):
            shifted[which] = weights[which].astype(np.float64)
            shifted[which][index] += sign * step
            hidden = np.tanh(x.astype(np.float64) @ shifted[0] + shifted[1])
            losses.append(float(((hidden @ shifted[2] + shifted[3] - y) ** 2).mean()))
        slope = (losses[0] - losses[1]) / (2 * step)
        assert weights[which][index] - moved[which][index] == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("bad", [np.array([1.0, np.nan]), np.array([1.0]), np.array([np.inf, 2.0])])
def test_nan_infinity_and_another_shape_are_infinitely_wrong(bad: np.ndarray) -> None:
    assert reference.error(bad, np.array([1.0, 2.0])) == float("inf")


def test_the_tiny_model_is_not_degenerate() -> None:
    """A control on the control: every weight of the tiny model changes its output."""
    weights, x = reference.tiny_weights(0), reference.tiny_input(0)
    base = reference.tiny_forward(weights, x)
    for name in weights:
        changed = {**weights, name: weights[name] + 0.1}
        assert reference.error(reference.tiny_forward(changed, x), base) > 1e-3, name
