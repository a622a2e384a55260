"""Means over tokens, with intervals that know that the tokens of one trace are alike. Pure.

Tokens of one trace are not independent: an easy problem makes all of them easy. So each trace is one draw (a *cluster*), and
the spread between traces, not between tokens, says how sure a mean is.

Of cluster g, let n be its tokens inside and S the sum of their values, m and R the same of the rest. With the means
a = sum S / sum n and b = sum R / sum m, the influence of a cluster on a - b is

    u_g = (S_g - a n_g) / sum n  -  (R_g - b m_g) / sum m

and the variance of a - b is G / (G - 1) * sum u_g^2 over the G clusters. That is the cluster-robust ("sandwich") variance of
Liang and Zeger (Biometrika 73, 1986) for a regression on inside or not, with the usual correction for few clusters. The
interval takes Student's t with G - 1 degrees of freedom: Cameron and Miller, A Practitioner's Guide to Cluster-Robust
Inference (Journal of Human Resources 50, 2015), section VI.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """`error` is the standard error, inf with fewer than two traces. The interval is clipped to what the value can be."""

    value: float
    error: float
    low: float
    high: float


def mean(tokens: Floats, sums: Floats, level: float) -> Estimate:
    """Per token, of values between 0 and 1. One entry a trace; at least one token in all."""
    return _estimate(*_ratio(tokens, sums), level, (0.0, 1.0))


def contrast(inside: tuple[Floats, Floats], whole: tuple[Floats, Floats], level: float) -> Estimate:
    """The mean inside less the mean of the rest. Each pair holds tokens and sums, one entry a trace."""
    a, of_a = _ratio(*inside)
    rest = whole[0] - inside[0]
    if not rest.sum():
        return Estimate(0.0, inf, -1.0, 1.0)
    b, of_b = _ratio(rest, whole[1] - inside[1])
    return _estimate(a - b, of_a - of_b, level, (-1.0, 1.0))


def _ratio(tokens: Floats, sums: Floats) -> tuple[float, Floats]:
    """A mean, and the influence of each cluster on it."""
    total = float(tokens.sum())
    value = float(sums.sum()) / total
    return value, (sums - value * tokens) / total


def _estimate(value: float, influence: Floats, level: float, limits: tuple[float, float]) -> Estimate:
    clusters = len(influence)
    if clusters < 2:
        return Estimate(value, inf, *limits)
    error = sqrt(clusters / (clusters - 1) * float(influence @ influence))
    reach = t_quantile((1 + level) / 2, clusters - 1) * error
    return Estimate(value, error, max(limits[0], value - reach), min(limits[1], value + reach))


def t_quantile(probability: float, freedom: int) -> float:
    """Of Student's t, by the expansion 26.7.5 of Abramowitz and Stegun: right to 0.001 from 4 degrees of freedom on, 1 % too
    small at 2."""
    z = NormalDist().inv_cdf(probability)
    return z + sum(
        sum(c * z**power for c, power in zip(terms, range(2 * k + 1, 0, -2), strict=True))
        / (divisor * freedom**k)
        for k, (divisor, terms) in enumerate(_T_TERMS, 1)
    )


_T_TERMS = (
    (4, (1, 1)),
    (96, (5, 16, 3)),
    (384, (3, 19, 17, -15)),
    (92160, (79, 776, 1482, -1920, -945)),
)
