"""Each family of APIs has a module of handlers.

A handler turns a request into an operation of the broker, and its outcome into Kafka's response.
Handlers know no sockets, and make no decision that another listener would also make.
"""
