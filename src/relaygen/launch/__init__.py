"""Two servers for a pair: the commands that start them as a relay needs them, and running them.

commands.py   models and settings -> commands: pure
children.py   runs both, prefixes their logs, ends both
"""

from relaygen.launch.children import run_both
from relaygen.launch.commands import Command, EngineName, Plan, Settings, Speculation, plan

__all__ = ["Command", "EngineName", "Plan", "Settings", "Speculation", "plan", "run_both"]
