"""Faults on the way to a server, at will and repeatable: a proxy that spoils some of what passes.

faults.py says what can happen and where, proxy.py does it, `python -m relaygen.chaos` puts it in front of any server.
"""
