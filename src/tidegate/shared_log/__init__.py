"""The log of events that the processes of one key share, so that each holds the same state of the key's limits.

This module chooses the carrier of the logs that the setting `share` names.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tidegate.errors import ConfigurationError
from tidegate.shared_log.carrier import Carrier, Unshared, Unsupported

OFF, AUTO = "off", "auto"

RAY = "ray"

REDIS = ("redis://", "rediss://")

TRIED = ("linux",)
"""Platforms on which `auto` shares: on others the kernel's locks have not been tried."""


def carrier_of(share: str) -> Carrier | None:
    """Return the carrier for a value of the setting, None for `off`; raise `Unshared` with the reason.

    `auto` is the private folder of this user, `ray` the cluster of this process. Any other value is the URL of a server
    or the path of a folder. A URL that cannot be used raises `ConfigurationError`.
    """
    if share == OFF:
        return None
    if share == AUTO and not sys.platform.startswith(TRIED):
        raise Unsupported(f"auto does not share on {sys.platform}, where it has not been tried")
    if is_server(share):
        if share == RAY:
            from tidegate.shared_log.ray_log import ray_carrier

            return ray_carrier()
        if share.startswith(REDIS):
            from tidegate.shared_log.redis_log import redis_carrier

            return redis_carrier(share)
        from tidegate.shared_log.postgres_log import postgres_carrier

        return postgres_carrier(share)
    from tidegate.shared_log.host import HostCarrier

    return HostCarrier.find() if share == AUTO else HostCarrier.at(Path(share))


def is_server(share: str) -> bool:
    return "://" in share or share == RAY


def place_of(share: str) -> str:
    """Return where the limits are shared by a value of the setting, empty for `off`; raise `Unshared`."""
    carrier = carrier_of(share)
    if carrier is None:
        return ""
    try:
        return carrier.place
    finally:
        carrier.close()


def has_secret(share: str) -> bool:
    """Return whether the processes that share by a value of the setting have a secret in common."""
    try:
        carrier = carrier_of(share)
    except (Unshared, ConfigurationError):
        return False
    if carrier is not None:
        carrier.close()
    return carrier is not None


def text_of(secret: bytes) -> str:
    """Return a secret as text of at most 64 bytes, which a variable of the environment can hold."""
    return secret[:32].hex()
