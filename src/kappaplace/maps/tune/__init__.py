"""Calibration, labelling, fitting κ and monitoring of a map."""
