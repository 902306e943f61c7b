# SPDX-License-Identifier: Apache-2.0
"""Numbers that carry an error bound through arithmetic, and error bounds of the functions that other files share."""

import math

import numpy as np

from ..entries import summed
from ..law import TINY, clean_q, log_remaining, normalised, positive, remaining, widened
from ..residual import leftover

EPS = 2.0**-24  # half an ulp of float32 at 1
SUM_EPS = 32 * EPS  # error of a float32 sum over one chunk of a row, relative to the row's total
EXACT = 0.0  # the error of a plain number


class Band(np.lib.mixins.NDArrayOperatorsMixin):
    """A number or a row with an error bound. value: float64; err, of the same shape: the largest absolute error."""

    def __init__(self, value, err):
        self.value, self.err = value, err

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        """Apply a ufunc, with the error to first order. Ufuncs not in ERRORS, such as comparisons, return plain
        values."""
        values = [value_of(x) for x in inputs]
        value = getattr(ufunc, method)(*values, **kwargs)
        if ufunc not in ERRORS:
            return value
        return Band(value, ERRORS[ufunc](value, *values, *map(err_of, inputs)))

    def __getitem__(self, i):
        return Band(self.value[i], self.err[i])

    def __setitem__(self, i, exact):
        self.value[i], self.err[i] = exact, 0.0

    def __len__(self):
        return len(self.value)

    def __float__(self):
        return float(self.value)

    def copy(self):
        return Band(self.value.copy(), self.err.copy())

    def sum(self):
        return Band(self.value.sum(), self.err.sum())

    def argmax(self):
        return self.value.argmax()


def value_of(x):
    return x.value if isinstance(x, Band) else x


def err_of(x):
    return x.err if isinstance(x, Band) else EXACT


def band(x):
    """Return x as a Band; a plain number or row is exact."""
    return x if isinstance(x, Band) else Band(x, np.zeros(np.shape(x)))


def plain(function):
    """Return the version of a @singledispatch function for plain rows, as in the papers."""
    return function.dispatch(object)


def times(err, x):
    return EXACT if err is EXACT else err * x  # exact even if x is infinite


# ufunc -> function of (result, a, b, err of a, err of b). maximum assumes that b is exact, minimum that a is.
ERRORS = {
    np.negative: lambda x, a, da: da,
    np.add: lambda x, a, b, da, db: da + db,
    np.subtract: lambda x, a, b, da, db: da + db,
    np.multiply: lambda x, a, b, da, db: times(da, b) + times(db, a),
    np.true_divide: lambda x, a, b, da, db: (da + times(db, x)) / b,
    # The error is 0 if the exact operand is the result, and rounding cannot change that.
    np.maximum: lambda x, a, b, da, db: np.where(np.abs(a - b) * (x == b) > da, 0.0, da),
    np.minimum: lambda x, a, b, da, db: np.where(b - db >= a, 0.0, db)[()],
}


def rounding(x):
    """Return the relative error of a float32 evaluation of exp(x) / sum exp(x).

    It is the sum of a few ulp for exp, the rounding of its argument, and the error of the normaliser. x [V]: ln of the
    weights relative to the largest.
    """
    return EPS * (16 + 2 * np.where(x > -np.inf, np.abs(x), 0.0) + 3 * math.log(len(x)))


@widened.register
def _(row: Band, n):
    return Band(np.pad(row.value, (0, n)), np.pad(row.err, (0, n)))


@summed.register
def _(row: Band, ids, width):
    """Sum the entries of each id. The error includes that of an op, which adds them one by one in float32."""
    value, err, number = (summed(x, ids, width) for x in (row.value, row.err, np.ones(len(ids))))
    return Band(value, err + EPS * value * np.maximum(number - 1, 0))


@positive.register
def _(row: Band):
    return Band(positive(row.value), row.err.copy())


@clean_q.register
def _(q: Band):
    return Band(clean_q(q.value), q.err)


@normalised.register
def _(w: Band):
    """Normalise. The error of the total is the sum of the entries' errors, plus the error of the summation."""
    total, share = w.value.sum(), normalised(w.value)
    return Band(share, (w.err + share * w.err.sum()) / total + share * SUM_EPS)


@remaining.register
def _(p: Band, log_p, gone):
    """Return the remaining weights. For a row of logits, their errors too are relative to the largest weight left."""
    w = remaining(p.value, log_p, gone)
    err = p.err.copy() if log_p is None else w * rounding(log_remaining(log_p, gone))
    err[gone] = 0.0
    return Band(w, err)


@leftover.register
def _(p: Band, q):
    x = p.value - value_of(q)
    err = p.err + err_of(q) + TINY * (p.value > 0)
    return Band(np.maximum(x, 0.0), np.where(-x > err, 0.0, err))
