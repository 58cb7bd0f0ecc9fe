"""Tables, plots and HTML; the arithmetic belongs to metrics."""
