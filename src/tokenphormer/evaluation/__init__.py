"""Evaluation: metrics of predicted probabilities, plots, and the report of a run."""

from tokenphormer.evaluation.metrics import Metrics, evaluate

__all__ = ["Metrics", "evaluate"]
