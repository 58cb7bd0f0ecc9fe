"""The whole way in a few minutes: city, training, κ, retrieval, report."""
