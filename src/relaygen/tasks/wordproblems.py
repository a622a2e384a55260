"""Word problems of our own, with answers: as many as wanted, the same for the same seed.

Made for calibration, which must not see the problems that a pair is later tested on. Each kind is a function that draws
its numbers such that the answer is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import comb, factorial, gcd, lcm
from random import Random

from relaygen.errors import UserError
from relaygen.tasks.problems import Problem

Drawn = tuple[str, int | Fraction | str]  # the problem and its answer


MOST = 500  # beyond, some kinds would run out of numbers


def generate(count: int, seed: int = 0) -> list[Problem]:
    """`count` different problems, all kinds in turn. UserError for more than MOST."""
    if not 1 <= count <= MOST:
        raise UserError(f"there are 1 to {MOST} word problems to be had, not {count}")
    problems: list[Problem] = []
    seen: set[str] = set()
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        random = Random(f"{seed}/{number}")  # noqa: S311 - no secret depends on it
        text, answer = kind(random)
        while text in seen:
            text, answer = kind(random)
        seen.add(text)
        problems.append(Problem(f"{kind.__name__.strip('_')}-{seed}-{number}", text, str(answer)))
    return problems


# --- rates


def _pumps(r: Random) -> Drawn:
    first, second, hours = r.randint(12, 40), r.randint(12, 40), r.randint(3, 9)
    leak = r.randint(2, 9)
    return (
        f"Two pumps fill a reservoir, one at {first} cubic metres an hour and the other at {second}, while {leak} cubic"
        f" metres an hour seep into the ground. How many cubic metres are gained in {hours} hours?",
        (first + second - leak) * hours,
    )


def _ferries(r: Random) -> Drawn:
    fast, slow, hours = r.randint(21, 35), r.randint(10, 20), r.randint(2, 8)
    return (
        f"Two ferries set out at the same moment from opposite shores of a strait that is {(fast + slow) * hours} km"
        f" wide. One goes {fast} km/h, the other {slow} km/h. After how many hours do they meet?",
        hours,
    )


def _painters(r: Random) -> Drawn:
    workers, days, factor = r.randint(2, 6), r.randint(3, 9), r.choice((2, 3))
    return (
        f"A crew of {workers * factor} painters needs {days} days for a hall. At the same pace, how many days would"
        f" {workers} painters need?",
        days * factor,
    )


def _speed(r: Random) -> Drawn:
    metres = r.randint(4, 60) * 5
    return (
        f"A probe covers {metres} metres a second. What is its speed in kilometres per hour?",
        metres * 18 // 5,
    )


# --- percentages and mixtures


def _discount(r: Random) -> Drawn:
    price, off, tax = r.randint(2, 18) * 100, r.choice((10, 20, 25, 30, 40)), r.choice((5, 10, 20))
    return (
        f"A workbench is listed at {price} crowns. The dealer takes {off}% off, and then a tax of {tax}% is added to"
        " the reduced price. How many crowns does the buyer pay? Give a fraction or a decimal if it is no whole number.",
        _decimal(Fraction(price * (100 - off) * (100 + tax), 10_000)),
    )


def _growth(r: Random) -> Drawn:
    before, percent = r.randint(3, 30) * 20, r.choice((5, 15, 20, 25, 35, 60))
    return (
        f"After a rise of {percent}%, a village has {before * (100 + percent) // 100} inhabitants. How many did it"
        " have before?",
        before,
    )


def _brine(r: Random) -> Drawn:
    litres, strong, factor = r.randint(3, 12), r.choice((20, 30, 40, 60)), r.choice((2, 4, 5))
    return (
        f"A vat holds {litres} litres of brine that is {strong}% salt by volume. How many litres of pure water bring it"
        f" down to {_decimal(Fraction(strong, factor))}%?",
        litres * (factor - 1),
    )


def _interest(r: Random) -> Drawn:
    sum_, rate, years = r.randint(4, 40) * 50, r.choice((2, 4, 6, 8)), r.randint(2, 7)
    return (
        f"A loan of {sum_} florins bears simple interest of {rate}% a year. How much interest is due after {years}"
        " years in total?",
        sum_ * rate * years // 100,
    )


# --- ages, ratios, averages


def _ages(r: Random) -> Drawn:
    child, factor, years = r.randint(4, 12), r.choice((3, 4, 5)), r.randint(2, 9)
    return (
        f"Orla's grandmother is {factor} times as old as Orla. In {years} years they will be"
        f" {child * (factor + 1) + 2 * years}. How old is Orla now?",
        child,
    )


def _ratio(r: Random) -> Drawn:
    a, b, c = r.sample(range(2, 9), 3)
    unit = r.randint(3, 15)
    return (
        f"An alloy is made of copper, tin and zinc in the ratio {a}:{b}:{c} by mass. How many grams of tin are in"
        f" {(a + b + c) * unit} grams of it?",
        b * unit,
    )


def _average(r: Random) -> Drawn:
    count, mean, rise = r.randint(4, 9), r.randint(50, 80), r.randint(1, 4)
    return (
        f"The first {count} hikes of a club were {mean} minutes long on average. How long must the next hike be, in"
        f" minutes, to raise the average to {mean + rise}?",
        mean + rise * (count + 1),
    )


# --- sequences


def _seats(r: Random) -> Drawn:
    first, step, rows = r.randint(8, 20), r.randint(2, 5), r.randint(6, 15)
    return (
        f"The first row of an open-air theatre has {first} seats, and each further row has {step} more than the one"
        f" before. How many seats are there in {rows} rows?",
        rows * (2 * first + (rows - 1) * step) // 2,
    )


def _yeast(r: Random) -> Drawn:
    start, minutes, times = r.randint(3, 20), r.choice((15, 20, 30)), r.randint(3, 7)
    return (
        f"A culture of {start} yeast cells doubles every {minutes} minutes. How many cells are there after"
        f" {minutes * times} minutes?",
        start * 2**times,
    )


def _pattern(r: Random) -> Drawn:
    a, b, n = r.randint(1, 6), r.randint(2, 7), r.randint(6, 9)
    terms = [a, b]
    while len(terms) < n:
        terms.append(terms[-1] + terms[-2])
    return (
        f"A sequence begins {a}, {b}, and from the third term on each term is the sum of the two before it. What is"
        f" the term number {n}?",
        terms[-1],
    )


# --- geometry


def _field(r: Random) -> Drawn:
    width, factor = r.randint(4, 20), r.choice((2, 3, 4))
    return (
        f"A rectangular meadow is {factor} times as long as it is wide, and {2 * width * (factor + 1)} metres of fence"
        " surround it. What is its area in square metres?",
        width * width * factor,
    )


def _mast(r: Random) -> Drawn:
    a, b, c = r.choice(((3, 4, 5), (5, 12, 13), (8, 15, 17), (7, 24, 25)))
    unit = r.randint(1, 9)
    return (
        f"A taut rope runs from the top of a vertical mast to a ring in level ground {a * unit} metres from its foot."
        f" The mast is {b * unit} metres high. How long is the rope, in metres?",
        c * unit,
    )


def _tank(r: Random) -> Drawn:
    a, b, c = r.randint(3, 9), r.randint(3, 9), r.randint(2, 6)
    return (
        f"A closed box measures {a} by {b} by {c} decimetres. How many square decimetres of card cover all six sides?",
        2 * (a * b + b * c + a * c),
    )


# --- algebra


def _numbers(r: Random) -> Drawn:
    large, small = r.randint(30, 90), r.randint(5, 29)
    return (
        f"The sum of two numbers is {large + small} and their difference is {large - small}. What is their product?",
        large * small,
    )


def _coins(r: Random) -> Drawn:
    two, five = r.randint(4, 20), r.randint(4, 20)
    return (
        f"A jar has {two + five} coins, worth 2 or 5 groats each, and {2 * two + 5 * five} groats in all. How many of"
        " the coins are worth 5 groats?",
        five,
    )


def _digits(r: Random) -> Drawn:
    tens = r.randint(4, 9)
    units = r.randint(1, tens - 1)
    return (
        f"The digits of a two-digit number add up to {tens + units}. Swapping them makes the number smaller by"
        f" {9 * (tens - units)}. What is the number?",
        10 * tens + units,
    )


# --- number theory


def _lamps(r: Random) -> Drawn:
    a, b, c = r.sample((4, 6, 9, 10, 12, 14, 15), 3)
    return (
        f"Three lighthouse lamps flash every {a}, {b} and {c} seconds. They have just flashed together. After how many"
        " seconds do they next flash together?",
        lcm(a, b, c),
    )


def _planks(r: Random) -> Drawn:
    unit = r.choice((6, 8, 12, 14, 15))
    a, b = next((x, y) for x, y in iter(lambda: (r.randint(3, 9), r.randint(3, 9)), None) if gcd(x, y) == 1)
    return (
        f"Two beams of {a * unit} cm and {b * unit} cm are to be sawn into equal pieces, as long as possible, with"
        " nothing left over. How many pieces are there?",
        a + b,
    )


def _remainder(r: Random) -> Drawn:
    base, power, mod = r.randint(2, 6), r.randint(20, 60), r.choice((7, 11, 13))
    return (
        f"What is the remainder when {base} to the power of {power} is divided by {mod}?",
        pow(base, power, mod),
    )


# --- combinatorics


def _crew(r: Random) -> Drawn:
    n, m, a = r.randint(5, 9), r.randint(4, 8), r.randint(2, 3)
    return (
        f"From {n} rowers and {m} sailors a crew of {a} rowers and 2 sailors is chosen. In how many ways?",
        comb(n, a) * comb(m, 2),
    )


def _shelf(r: Random) -> Drawn:
    n, k = r.randint(5, 9), r.randint(2, 3)
    things = r.choice(("atlases", "lanterns", "masks", "vases"))
    return (
        f"In how many orders can {n} different {things} stand on a shelf if {k} particular ones must stand side by side?",
        factorial(k) * factorial(n - k + 1),
    )


def _marbles(r: Random) -> Drawn:
    green, white = r.randint(3, 7), r.randint(3, 7)
    total = green + white
    return (
        f"A pouch holds {green} green and {white} white beads. Two are drawn without putting the first back. What is the"
        " probability that both are green, as a fraction in lowest terms?",
        Fraction(green * (green - 1), total * (total - 1)),
    )


def _decimal(value: Fraction) -> int | str:
    return value.numerator if value.denominator == 1 else f"{float(value):g}"


KINDS: tuple[Callable[[Random], Drawn], ...] = (
    _pumps,
    _discount,
    _ages,
    _ratio,
    _seats,
    _field,
    _numbers,
    _lamps,
    _crew,
    _ferries,
    _growth,
    _average,
    _yeast,
    _mast,
    _coins,
    _planks,
    _shelf,
    _painters,
    _brine,
    _pattern,
    _tank,
    _digits,
    _remainder,
    _marbles,
    _speed,
    _interest,
)
