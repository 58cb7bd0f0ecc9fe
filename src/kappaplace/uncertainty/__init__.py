"""Uncertainty scores, higher = less certain: one small file a method, one registry."""
