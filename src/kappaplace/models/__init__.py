"""Models from image batches to embeddings: backbones, aggregation, kappa heads, checkpoints."""
