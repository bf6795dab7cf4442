"""Clients over the network: the protocol of docs/protocol.md, and the server that speaks it."""
