"""What objects of a TensorRT package are, by the names that this project has for them."""

from __future__ import annotations

MODULE, SEVERITY = "module", "ILogger.Severity"

# By the names of variables and parameters that are `Any`, the class of what they hold, or of a list of them.
VARIABLES = {
    "trt": MODULE,
    "built": "IHostMemory",
    "config": "IBuilderConfig",
    "dtype": "DataType",
    "engine": "ICudaEngine",
    "layer": "ILayer",
    "level": SEVERITY,
    "network": "INetworkDefinition",
    "tensor": "ITensor",
}
# Likewise of attributes of our own classes.
ATTRIBUTES = {
    "trt": MODULE,
    "engine": "ICudaEngine",
    "_builder": "Builder",
    "_context": "IExecutionContext",
    "_logger": "ILogger",
    "_network": "INetworkDefinition",
    "_runtime": "Runtime",
}
# `Any` that is something else: CUDA's module, a driver's handle, what a user gives.
OTHER = {"api", "code", "handle", "ids", "scratch", "_scratch", "source", "targets"}
# Classes of what methods and properties give, where code goes on with it.
GIVES = {
    (MODULE, "Runtime"): "Runtime",
    ("Builder", "build_serialized_network"): "IHostMemory",
    ("Builder", "create_builder_config"): "IBuilderConfig",
    ("Builder", "create_network"): "INetworkDefinition",
    ("Builder", "create_optimization_profile"): "IOptimizationProfile",
    ("IAttentionOutputLayer", "attention"): "IAttention",
    ("IBuilderConfig", "create_timing_cache"): "ITimingCache",
    ("IBuilderConfig", "get_timing_cache"): "ITimingCache",
    ("IConstantLayer", "weights"): "Weights",
    ("ICudaEngine", "create_execution_context"): "IExecutionContext",
    ("ICudaEngine", "get_tensor_dtype"): "DataType",
    ("ICudaEngine", "get_tensor_location"): "TensorLocation",
    ("ICudaEngine", "get_tensor_mode"): "TensorIOMode",
    ("ICudaEngine", "get_tensor_profile_shape"): "Dims",
    ("ICudaEngine", "get_tensor_shape"): "Dims",
    ("IExecutionContext", "get_tensor_shape"): "Dims",
    ("ILayer", "get_input"): "ITensor",
    ("ILayer", "get_output"): "ITensor",
    ("ILayer", "get_output_type"): "DataType",
    ("ILayer", "type"): "LayerType",
    ("ILogger", "Severity"): SEVERITY,
    ("INetworkDefinition", "get_input"): "ITensor",
    ("INetworkDefinition", "get_layer"): "ILayer",
    ("INetworkDefinition", "get_output"): "ITensor",
    ("ITensor", "dtype"): "DataType",
    ("ITensor", "shape"): "Dims",
    ("ITimingCache", "serialize"): "IHostMemory",
    ("OnnxParser", "get_error"): "ParserError",
    ("Runtime", "deserialize_cuda_engine"): "ICudaEngine",
}
