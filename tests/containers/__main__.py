"""`scripts/trial-docker`: see the package."""

from __future__ import annotations

import asyncio
import sys

import click

from tests.containers import images, trial


@click.group()
def main() -> None:
    """Build the image, and run the compose file."""


@main.command()
def build() -> None:
    """Make the bases (once), build the image, and check its size."""
    trial.build(images.Store(images.cache_directory()))


@main.command()
def run() -> None:
    """Run docker/compose.yaml; in namespaces of its own, see scripts/trial-docker."""
    sys.exit(asyncio.run(trial.run(images.Store(images.cache_directory()))))


if __name__ == "__main__":
    main()
