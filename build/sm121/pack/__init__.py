"""The wheel: stamped, tagged, assembled from its parts, published under its final name."""
