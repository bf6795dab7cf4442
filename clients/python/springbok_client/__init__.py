"""Plays an environment with the agent of a Springbok server, over the network. See docs/clients.md and docs/protocol.md."""

from springbok_client.agent import Action, Finished, RemoteAgent, ServerError, reset_message, step_message

__all__ = ["Action", "Finished", "RemoteAgent", "ServerError", "reset_message", "step_message"]
__version__ = "0.1.0"
