"""Judgement: pure functions from facts and rules to findings. Each reports all that it finds."""
