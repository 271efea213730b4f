"""One run, end to end: what it is (`identity`), how it is done (`attempt`), what it left (`record`)."""

from lengthwise.run.attempt import STOPPED, Stopped, train
from lengthwise.run.identity import Plan
from lengthwise.run.record import STORE, Run

__all__ = ["STOPPED", "STORE", "Plan", "Run", "Stopped", "train"]
