"""Examples of replicated services, to be read and copied.

Purpose: `kv` and `bank` are a file each. `table` keeps their states, `service` and `watch` have the
HTTP side of both.

Must not know: private names of the package.
"""
