"""The reader of kustomizations: its output, its refusals, and the comparison with kustomize."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docker.kustomization import API_VERSION, KustomizationError, build, name_of
from tests.docker.serve_names import KUBERNETES, OVERLAYS

HEAD = f"apiVersion: {API_VERSION}\nkind: Kustomization\n"
SERVICE = "apiVersion: v1\nkind: Service\nmetadata:\n  name: {}\nspec:\n  ports: []\n"


def write(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / f"{name}.yaml").write_text(text)
    return directory


def test_files_and_directories_are_read_patched_and_renamed(tmp_path: Path) -> None:
    two = "---\n".join(SERVICE.format(name) for name in "ab")
    write(tmp_path / "base", kustomization=f"{HEAD}resources: [two.yaml]\n", two=two)
    patch = "- {op: test, path: /spec/ports, value: []}\n- {op: add, path: /spec/x, value: 1}"
    over = {
        "resources": ["../base", "c.yaml"],
        "nameSuffix": "-z",
        "patches": [{"target": {"kind": "Service", "name": "a"}, "patch": patch}],
    }
    text = HEAD + yaml.safe_dump(over)
    built = build(write(tmp_path / "over", kustomization=text, c=SERVICE.format("c")))
    assert [name_of(one)[1] for one in built] == ["a-z", "b-z", "c-z"]
    assert [one["spec"].get("x") for one in built] == [1, None, None]


@pytest.mark.parametrize(
    ("addition", "complaint"),
    [
        ("namespace: x\n", "namespace"),
        ("patches: [{path: file.yaml}]\n", "inline"),
        ("patches: [{target: {kind: Service, name: a}, patch: '{spec: 1}'}]\n", "only JSON"),
        ("patches: [{target: {kind: Service, name: b}, patch: '[]'}]\n", "to patch"),
    ],
)
def test_a_form_outside_of_the_subset_is_refused(
    tmp_path: Path, addition: str, complaint: str
) -> None:
    text = f"{HEAD}resources: [a.yaml]\n{addition}"
    directory = write(tmp_path, kustomization=text, a=SERVICE.format("a"))
    with pytest.raises(KustomizationError, match=complaint):
        build(directory)


def test_a_resource_that_comes_twice_is_refused(tmp_path: Path) -> None:
    files = {"a": SERVICE.format("a"), "b": SERVICE.format("a")}
    text = f"{HEAD}resources: [a.yaml, b.yaml]\n"
    with pytest.raises(KustomizationError, match="twice"):
        build(write(tmp_path, kustomization=text, **files))


@pytest.mark.parametrize("directory", ["base", *(f"overlays/{one}" for one in OVERLAYS)])
def test_kustomize_builds_the_same(directory: str) -> None:
    program = shutil.which("kustomize")
    if program is None:
        pytest.skip("no kustomize on the path to compare with")
    done = subprocess.run(
        [program, "build", str(KUBERNETES / directory)], capture_output=True, text=True, check=True
    )
    theirs = sorted(yaml.safe_load_all(done.stdout), key=name_of)
    ours: list[Any] = sorted(build(KUBERNETES / directory), key=name_of)
    assert ours == theirs
