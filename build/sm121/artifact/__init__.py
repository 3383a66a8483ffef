"""Readers of what others made: bytes in, files out, nothing unpacked to disk."""

from sm121.artifact.image import Image
from sm121.artifact.imagedocs import ImageConfig, Platform
from sm121.artifact.member import Artifact, Buffer, Kind, Limits, Member, printable
from sm121.artifact.opener import open_artifact
from sm121.artifact.reference import ImageReference
from sm121.artifact.wheel import Wheel

__all__ = [
    "Artifact",
    "Buffer",
    "Image",
    "ImageConfig",
    "ImageReference",
    "Kind",
    "Limits",
    "Member",
    "Platform",
    "Wheel",
    "open_artifact",
    "printable",
]
