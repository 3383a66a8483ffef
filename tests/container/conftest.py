"""Fixtures of tests that need an engine or a registry."""

from __future__ import annotations

from engine_fixture import arm64, base, engine, engine_process, engine_registry
from registry_fixture import registry

__all__ = ["arm64", "base", "engine", "engine_process", "engine_registry", "registry"]
