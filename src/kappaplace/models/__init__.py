"""Image batch → Embeddings: backbones, aggregation, kappa heads, checkpoints."""
