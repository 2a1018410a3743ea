"""Training: the settings, the one loop, checkpoints, and Tokenphormer as a method to train."""

from tokenphormer.training.settings import Config, TrainingSettings

__all__ = ["Config", "TrainingSettings"]
