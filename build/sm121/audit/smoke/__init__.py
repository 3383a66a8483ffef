"""Validates a running server: version, warm-up, text, structured output, load, speed. Bounded, and it ends by itself."""
