"""`scripts/bench state`: replicated state, in process and over HTTP, beside etcd."""
