"""Evaluates small parts of upstream's Python without importing it.

Selection code asks about the device, the environment and installed packages; those answers are known here or they
are not. Code is walked as a syntax tree with real values where they are known. At a condition that is not known
both ways are walked, and the answer carries the conditions under which it holds: nothing is guessed.
"""

from sm121.audit.static.machine import Facts, Machine
from sm121.audit.static.paths import Answer, Step, explore

__all__ = ["Answer", "Facts", "Machine", "Step", "explore"]
