"""Builds the part of kustomize to which docker/kubernetes keeps.

`resources` (files and directories), `nameSuffix`, and inline JSON patches (RFC 6902) with a target.
An unknown key is an error. Where a `kustomize` is on the path, the tests compare its
output.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import jsonpatch
import yaml

Manifest: TypeAlias = dict[str, Any]

API_VERSION: Final = "kustomize.config.k8s.io/v1beta1"
_KEYS: Final = frozenset({"apiVersion", "kind", "resources", "nameSuffix", "patches"})


class KustomizationError(ValueError):
    """The kustomization has an unknown key or form, or does not build."""


def build(directory: Path) -> list[Manifest]:
    """The manifests of the kustomization in `directory`, patched and renamed."""
    file = directory / "kustomization.yaml"
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    if unknown := set(document) - _KEYS:
        raise KustomizationError(f"{file}: {sorted(unknown)} is not understood")
    if (document["apiVersion"], document["kind"]) != (API_VERSION, "Kustomization"):
        raise KustomizationError(f"{file} is no Kustomization of {API_VERSION}")
    manifests = [one for name in document["resources"] for one in _resource(directory / name)]
    names = [name_of(one) for one in manifests]
    if len(set(names)) < len(names):
        raise KustomizationError(f"{file}: a resource comes twice in {sorted(names)}")
    for patch in document.get("patches", ()):
        manifests = list(_patched(manifests, patch, file))
    for one in manifests:
        one["metadata"]["name"] += document.get("nameSuffix", "")
    return manifests


def name_of(manifest: Manifest) -> tuple[str, str]:
    """Kind and name."""
    return manifest["kind"], manifest["metadata"]["name"]


def _resource(path: Path) -> Iterator[Manifest]:
    if path.is_dir():
        yield from build(path)
        return
    yield from yaml.safe_load_all(path.read_text(encoding="utf-8"))


def _patched(manifests: list[Manifest], patch: Any, file: Path) -> Iterator[Manifest]:
    if set(patch) != {"target", "patch"} or set(patch["target"]) != {"kind", "name"}:
        raise KustomizationError(f"{file}: a patch is an inline JSON patch with kind and name")
    operations = yaml.safe_load(patch["patch"])
    if not isinstance(operations, list):
        raise KustomizationError(f"{file}: only JSON patches are understood")
    target = patch["target"]["kind"], patch["target"]["name"]
    if target not in [name_of(one) for one in manifests]:
        raise KustomizationError(f"{file}: no {target} to patch")
    for one in manifests:
        yield jsonpatch.apply_patch(one, operations) if name_of(one) == target else one
