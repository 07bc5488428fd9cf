"""A small channel between a source's coordinator and its readers: requests, and messages both ways."""

from pillarbox.sources.channel.client import ChannelClient, ChannelError, RemoteError
from pillarbox.sources.channel.handle import ChannelHandle
from pillarbox.sources.channel.server import Peer, Service, SourceChannel

__all__ = [
    "ChannelClient",
    "ChannelError",
    "ChannelHandle",
    "Peer",
    "RemoteError",
    "Service",
    "SourceChannel",
]
