"""Traceable modules, one per memory layout, and their export to ONNX. Importing this package imports torch."""
