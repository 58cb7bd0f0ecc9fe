"""Top-k search of references for queries."""
