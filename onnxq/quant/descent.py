"""Integer codes that make the error of a layer's output small: error feedback, then coordinate descent.

Everything works on `[problems, columns, channels]` float64 arrays with one `H [columns, columns]` for each problem: one
problem for a dense layer, one for each group of a Conv and each block of a block-diagonal H. A problem's error is
`dᵀ H d` for each channel, `d = codes * steps - weight`.

Sources: GPTQ, https://arxiv.org/abs/2210.17323 (`Feedback`); coordinate descent on codes as in QuantEase,
https://arxiv.org/abs/2309.01885 (`descend`).
"""

from __future__ import annotations

import numpy as np

STRIP = 32  # columns handled one by one before a matrix product brings the rest up to date
LEAST = 1e-6  # damping of a problem whose inputs are all but zero, relative to the mean of all problems


def damped(H: np.ndarray, damping: float) -> np.ndarray:
    """Add `damping` times the mean of the diagonal to the diagonal of each problem.

    It stands for what the samples do not show, and for the noise of activations that are quantized themselves.
    """
    diagonal = np.einsum("pbb->pb", H).mean(axis=1)
    result = H.copy()
    np.einsum("pbb->pb", result)[:] += np.maximum(damping * diagonal, LEAST * diagonal.mean())[:, None]
    return result


def nearest(weight: np.ndarray, steps: np.ndarray, limit: int) -> np.ndarray:
    """Round each element by itself, to codes from `-limit` to `limit`."""
    codes: np.ndarray = weight / steps
    np.rint(codes, out=codes)
    return np.clip(codes, -limit, limit, out=codes)


def errors(weight: np.ndarray, codes: np.ndarray, steps: np.ndarray, H: np.ndarray) -> np.ndarray:
    """Give `dᵀ H d` of each channel, `[problems, channels]`."""
    difference = codes * steps - weight
    return np.asarray(np.einsum("pbm,pbm->pm", H @ difference, difference))


class Feedback:
    """GPTQ: columns are rounded in turn, the largest H_jj first, and those that follow take up the error.

    With `H = R Rᵀ`, R upper triangular, the error is `|Rᵀ d|²`, whose j-th term holds only `d_0 … d_j`: each code makes
    its own term as small as it can, given those before. That is GPTQ, whose factor of the inverse is `R⁻¹`, without
    the inverse (https://arxiv.org/abs/2507.18553).

    Args:
        H: `[problems, columns, columns]`, positive definite.

    Attributes:
        weights: What a squared error in a column costs when the columns that follow make the best of it: `R_jj²`,
            `[problems, columns]`.

    """

    def __init__(self, H: np.ndarray) -> None:
        diagonal = np.einsum("pbb->pb", H)
        self.order = np.argsort(-diagonal, axis=1, kind="stable")
        backwards = self.order[:, ::-1]
        ordered = np.take_along_axis(H, backwards[:, :, None], axis=1)
        ordered = np.take_along_axis(ordered, backwards[:, None, :], axis=2)
        # Rᵀ: the Cholesky factor of the reversed matrix, reversed again and transposed
        self.factor = np.ascontiguousarray(np.linalg.cholesky(ordered)[:, ::-1, ::-1].transpose(0, 2, 1))
        self.weights = np.empty_like(diagonal)
        np.put_along_axis(self.weights, self.order, np.einsum("pbb->pb", self.factor) ** 2, axis=1)

    def round(self, weight: np.ndarray, steps: np.ndarray, limit: int) -> np.ndarray:
        """Give codes for `weight [problems, columns, channels]` and steps of the same shape."""
        weight, steps = (np.take_along_axis(a, self.order[:, :, None], axis=1) for a in (weight, steps))
        owed, codes = np.zeros_like(weight), np.empty_like(weight)
        columns = weight.shape[1]
        for start in range(0, columns, STRIP):
            stop = min(start + STRIP, columns)
            strip, change = owed[:, start:stop], np.empty_like(owed[:, start:stop])
            corner = self.factor[:, start:stop, start:stop]
            for j in range(stop - start):
                step, wanted = steps[:, start + j], weight[:, start + j]
                code = np.clip(np.rint((wanted - strip[:, j] / corner[:, j, j, None]) / step), -limit, limit)
                codes[:, start + j] = code
                change[:, j] = code * step - wanted
                strip[:, j + 1 :] += corner[:, j + 1 :, j, None] * change[:, j, None]
            owed[:, stop:] += self.factor[:, stop:, start:stop] @ change
        result = np.empty_like(codes)
        np.put_along_axis(result, self.order[:, :, None], codes, axis=1)
        return result


def descend(
    weight: np.ndarray, codes: np.ndarray, steps: np.ndarray, H: np.ndarray, limit: int, sweeps: int
) -> np.ndarray:
    """Set one code after the other to the best integer for all others as they are; the error never grows.

    Args:
        weight: `[problems, columns, channels]`.
        codes: Where to start, the same shape.
        steps: What one code step is worth, the same shape.
        H: `[problems, columns, columns]`.
        limit: Codes go from `-limit` to `limit`.
        sweeps: Passes over all columns at most; it stops early when nothing moves.

    Returns:
        New codes.

    """
    codes = codes.copy()
    slope = H @ (codes * steps - weight)
    diagonal = np.einsum("pbb->pb", H)
    inverse = np.divide(1.0, diagonal, out=np.zeros_like(diagonal), where=diagonal > 0)
    columns = codes.shape[1]
    for _ in range(sweeps):
        moved = False
        for start in range(0, columns, STRIP):
            stop = min(start + STRIP, columns)
            strip, before = slope[:, start:stop].copy(), codes[:, start:stop].copy()
            for j in range(start, stop):
                step, old = steps[:, j], codes[:, j]
                new = np.clip(np.rint(old - strip[:, j - start] * inverse[:, j, None] / step), -limit, limit)
                strip[:, j + 1 - start :] += H[:, j + 1 : stop, j, None] * ((new - old) * step)[:, None]
                codes[:, j] = new
            change = (codes[:, start:stop] - before) * steps[:, start:stop]
            if change.any():
                moved = True
                slope += H[:, :, start:stop] @ change
        if not moved:
            break
    return codes
