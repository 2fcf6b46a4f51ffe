"""The Transformer-XL of the paper in PyTorch: the judge of every exported graph, and what one trains.

Read `attention.py` beside section 3.3 of Dai et al. 2019 (arXiv:1901.02860), `model.py` beside 3.2.
"""

from txl_export.reference.model import Memory, TransformerXL

__all__ = ["Memory", "TransformerXL"]
