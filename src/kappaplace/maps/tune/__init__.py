"""What a map learns from labels, from itself and from its queries: calibrate, fit, label, monitor."""
