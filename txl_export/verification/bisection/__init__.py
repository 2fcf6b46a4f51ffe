"""Finding where accuracy is lost: the segment, the layer, the node, and the likely cause.

From the outside in: which call of the graph is out of tolerance when it starts from the reference's memory
(`search`); which part of it, embedding, layer or head, is the first (`layers`); which node of that part gives
another value than the judge's graph gives for the same inputs (`alignment`, `culprit`); and why (`causes`).
"""

from txl_export.verification.bisection.finding import Finding

__all__ = ["Finding"]
