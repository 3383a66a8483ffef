"""FlashInfer's modules: what upstream's own scripts ask to be compiled, as one build for ninja."""
