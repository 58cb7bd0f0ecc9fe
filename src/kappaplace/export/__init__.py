"""Models for other runtimes: one file each in ONNX, OpenVINO or TorchScript, checked against the original."""
