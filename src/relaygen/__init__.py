"""RelayGen: one answer, two models. A large and a small language model take turns writing it."""

__version__ = "0.1.0"
