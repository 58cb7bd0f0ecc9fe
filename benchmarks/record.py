"""Measured results as dated rows of a CSV file, as `kappaplace bench` writes them."""

from kappaplace.bench.record import append_row, write_rows

__all__ = ["append_row", "write_rows"]
