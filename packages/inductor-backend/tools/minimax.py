"""Polynomial coefficients of codegen/cpp/prelude.h: prints them as C++ hexadecimal constants.

Each is a near-minimax fit: least squares over Chebyshev nodes in 60-digit arithmetic, then
coefficient by coefficient (lowest first, they matter most) rounded to the target type with the rest
fitted again, so that the rounding of one is made up for by the next. Run: python minimax.py
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import mpmath as mp

mp.mp.dps = 60
Function = Callable[[mp.mpf], mp.mpf]


def nodes(low: float, high: float, count: int) -> list[mp.mpf]:
    """Chebyshev nodes of [low, high]."""
    middle, half = (mp.mpf(low) + high) / 2, (mp.mpf(high) - low) / 2
    return [middle + half * mp.cos(mp.pi * (2 * k + 1) / (2 * count)) for k in range(count)]


def least_squares(f: Function, points: list[mp.mpf], first: int, terms: int) -> list[mp.mpf]:
    """Coefficients of x^first ... x^(terms-1) closest to f at the points."""
    matrix = mp.matrix([[x**j for j in range(first, terms)] for x in points])
    return list(mp.lu_solve(matrix, mp.matrix([f(x) for x in points])))


def rounded(value: mp.mpf, single: bool) -> mp.mpf:
    return mp.mpf(struct.unpack("f", struct.pack("f", float(value)))[0] if single else float(value))


def fit(f: Function, low: float, high: float, terms: int, single: bool = True) -> list[mp.mpf]:
    """Coefficients, lowest power first, of `terms` terms for f on [low, high]."""
    known: list[mp.mpf] = []
    points = nodes(low, high, 6 * terms)
    while len(known) < terms:
        done = list(known)
        free = least_squares(
            lambda x: f(x) - mp.polyval(done[::-1] or [0], x), points, len(done), terms
        )
        known.append(rounded(free[0], single))
    return known


def report(
    name: str, f: Function, low: float, high: float, terms: int, single: bool = True
) -> None:
    c = fit(f, low, high, terms, single)
    grid = [low + (high - low) * mp.mpf(i) / 400 for i in range(401)]
    worst = max(abs(mp.polyval(c[::-1], x) - f(x)) for x in grid if x != 0)
    print(
        f"// {name} on [{mp.nstr(low, 6)}, {mp.nstr(high, 6)}], greatest absolute error"
        f" {mp.nstr(worst, 3)}"
    )
    print(", ".join((float(value).hex() + ("f" if single else "")) for value in c))


def nonzero(f: Function) -> Function:
    """f with its removable singularity at 0 stepped over."""
    return lambda x: f(x if abs(x) > mp.mpf(10) ** -20 else mp.mpf(10) ** -20)


def main() -> None:
    half_ln2 = mp.log(2) / 2 * mp.mpf("1.001")
    root = mp.sqrt(2) - 1
    report("(exp(r)-1-r)/r^2", nonzero(lambda r: (mp.expm1(r) - r) / r**2), -half_ln2, half_ln2, 5)
    report("(exp2(r)-1)/r", nonzero(lambda r: (mp.power(2, r) - 1) / r), -0.501, 0.501, 7)
    report(
        "(log(1+f)-f+f^2/2)/f^3",
        nonzero(lambda f: (mp.log1p(f) - f + f * f / 2) / f**3),
        1 / mp.sqrt(2) - 1,
        root,
        9,
    )
    report(
        "(sin(r)-r)/r^3 in r^2", lambda s: (mp.sin(mp.sqrt(s)) / mp.sqrt(s) - 1) / s, 1e-8, 0.62, 3
    )
    report(
        "(cos(r)-1+r^2/2)/r^4 in r^2",
        lambda s: (mp.cos(mp.sqrt(s)) - 1 + s / 2) / s**2,
        1e-8,
        0.62,
        3,
    )
    report(
        "(tan(r)-r)/r^3 in r^2", lambda s: (mp.tan(mp.sqrt(s)) / mp.sqrt(s) - 1) / s, 1e-8, 0.62, 7
    )
    report(
        "(tanh(x)-x)/x^3 in x^2", lambda s: (mp.tanh(mp.sqrt(s)) / mp.sqrt(s) - 1) / s, 1e-8, 0.4, 6
    )
    report("(erf(x)-x)/x in x^2", lambda s: mp.erf(mp.sqrt(s)) / mp.sqrt(s) - 1, 1e-8, 0.88, 7)
    report("-log(erfc(t))/t", lambda t: -mp.log(mp.erfc(t)) / t, 0.9, 4.0, 10)
    report("-log(erfc(t))/t for gelu", nonzero(lambda t: -mp.log(mp.erfc(t)) / t), 0, 4.3, 11)
    report(
        "log2((1+s)/(1-s))/s in s^2",
        nonzero(lambda q: 2 * mp.atanh(mp.sqrt(q)) / mp.sqrt(q) / mp.log(2)),
        1e-12,
        0.0296,
        6,
        single=False,
    )
    report("exp2(r)", lambda r: mp.power(2, r), -0.501, 0.501, 8, single=False)
    print("// 2/pi and constants")
    for name, value in (
        ("ln2", mp.log(2)),
        ("pio2", mp.pi / 2),
        ("2/pi", 2 / mp.pi),
        ("log2e", 1 / mp.log(2)),
        ("log10e", 1 / mp.log(10)),
        ("log10 2", mp.log(2) / mp.log(10)),
    ):
        hi = rounded(value, True)
        print(
            f"// {name} float: {float(hi).hex()} + {float(rounded(value - hi, True)).hex()}",
            end="   ",
        )
        hi = rounded(value, False)
        print(f"double: {float(hi).hex()} + {float(rounded(value - hi, False)).hex()}")


if __name__ == "__main__":
    main()
