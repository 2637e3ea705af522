"""`scripts/trial-deploy`: raftlog on machines, from nothing to an upgrade and a lost disk.

Machines are containers of systemd-nspawn with a whole systemd, an ssh server, a network namespace
and an overlay of this machine's root each (lab.py). The programs under trial are the ones that
operators run: `scripts/deploy`, the unit, `raftlog serve`.

Rules: a verdict comes from observations of the step, never from an exit code alone; traffic stays
in the trial's own network namespaces; no process and no mount outlives a trial, however it ends.
"""
