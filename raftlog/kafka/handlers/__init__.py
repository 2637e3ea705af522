"""Handlers, a module for each family of APIs: a request to an operation of the broker, its outcome
to Kafka's answer. They know no sockets, and decide nothing that another listener would decide, too.
"""
