"""Containers without an engine: docker/Dockerfile is built, docker/compose.yaml run with runc.

Purpose: to prove image and compose file where no engine runs. `scripts/trial-docker` makes
a Debian base, builds the image, starts the services as the file says, and judges the cluster.

Reading order: `compose` (the file as services; pure), `oci` (a service as runc's configuration;
pure), `health` (probes and restarts; pure), `engine` (namespaces, mounts, supervision), `images`
(debootstrap, buildah, sizes), `trial` (the steps).

Rules: a key of the compose file that is not understood is an error, never ignored; everything runs
in namespaces that end with the trial; every wait has a deadline; a step that fails ends the trial.

Must not know: the insides of the node.
"""
