"""Training: from examples to weights.

Legend of shape suffixes here: N examples, B rows of a batch, T tokens, V vocabulary.
"""

from lengthwise.training.settings import Training, training_preset

__all__ = ["Training", "training_preset"]
