"""Looks at running engines: what they are, how fast, and what about them would hurt a relay.

findings.py   what can be found, and what mends it: a table
speed.py      reading, decoding, the prefix cache: by the clock, or by the engine's own
checks.py     chat template, seeds, connections: by asking
doctor.py     all of it, for one engine and for a pair
"""

from relaygen.examine.doctor import Examination, examine, pair_findings
from relaygen.examine.findings import KINDS, Finding, finding

__all__ = ["KINDS", "Examination", "Finding", "examine", "finding", "pair_findings"]
