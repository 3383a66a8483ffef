"""Builds vLLM and FlashInfer for compute capability 12.1 and proves what it built."""

__version__ = "0.1.0"
