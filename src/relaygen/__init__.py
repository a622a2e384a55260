"""One answer, two models."""
