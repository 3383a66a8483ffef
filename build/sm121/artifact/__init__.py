"""Readers of what others made: bytes in, files out, nothing unpacked to disk."""

from sm121.artifact.distribution import Distribution, compare_with_wheel, shared_paths
from sm121.artifact.folder import FileArtifact, FolderArtifact
from sm121.artifact.image import Image
from sm121.artifact.imagedocs import ImageConfig, Platform
from sm121.artifact.installed import Survey, survey
from sm121.artifact.member import Artifact, Buffer, Kind, Limits, Member, printable
from sm121.artifact.opener import open_artifact
from sm121.artifact.reference import ImageReference
from sm121.artifact.wheel import Wheel, WheelIdentity, WheelName

__all__ = [
    "Artifact",
    "Buffer",
    "Distribution",
    "FileArtifact",
    "FolderArtifact",
    "Image",
    "ImageConfig",
    "ImageReference",
    "Kind",
    "Limits",
    "Member",
    "Platform",
    "Survey",
    "Wheel",
    "WheelIdentity",
    "WheelName",
    "compare_with_wheel",
    "open_artifact",
    "printable",
    "shared_paths",
    "survey",
]
