"""SGPM: pre-training on the graph document, and the vectors behind the SGPM-token."""

from tokenphormer.sgpm.document import GraphDocument, write_document
from tokenphormer.sgpm.pretrained import PretrainedSGPM, VectorKind
from tokenphormer.sgpm.pretraining import Pretrainer, PretrainProgress
from tokenphormer.sgpm.settings import SMALL, SGPMSettings

__all__ = [
    "SMALL",
    "GraphDocument",
    "PretrainProgress",
    "PretrainedSGPM",
    "Pretrainer",
    "SGPMSettings",
    "VectorKind",
    "write_document",
]
