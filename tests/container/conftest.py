"""Fixtures of tests that need an engine or a registry."""

from __future__ import annotations

from registry_fixture import registry

__all__ = ["registry"]
