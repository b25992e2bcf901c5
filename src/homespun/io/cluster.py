"""Connection to a Ray cluster."""

from __future__ import annotations

import importlib
import logging
import os
import socket
from importlib.metadata import version
from typing import Any

from homespun.errors import UserError, first_line, last_line

_SECONDS = 5.0  # for the cluster to answer


def connect() -> Any:
    """Connect to the Ray cluster of ``RAY_ADDRESS``, or start one on this machine; returns the module ``ray``.

    Raises:
        UserError: Ray is not installed, or the cluster cannot be reached.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise UserError("Ray is not installed, and --ray needs it: pip install 'homespun[ray]'") from None
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS")
        try:
            _check_port(address)
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=None if address else False,
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(
                f"cannot reach the Ray cluster {address or 'of this machine'} ({first_line(error)}); start it with "
                f"`ray start --head`, or correct RAY_ADDRESS"
            ) from error
    return ray


def check_version(expected: str) -> None:
    """Raise `UserError` in a worker that has another version of homespun than ``expected``."""
    if (here := version("homespun")) != expected:
        raise UserError(f"a worker has homespun {here}, not {expected}; install one version on all machines")


def _check_port(address: str | None) -> None:
    """Raise `OSError` immediately if nothing listens at an address with a port; Ray itself waits for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=_SECONDS).close()


def refusal(error: Exception) -> UserError:
    """Return the `UserError` of a task, or a new one with the last line of another error of Ray."""
    cause = getattr(error, "cause", None)
    if "No module named 'homespun'" in str(error):
        return UserError(f"a worker has no homespun; install homespun {version('homespun')} on all machines")
    if isinstance(cause, UserError):
        return UserError(str(cause))
    if isinstance(cause, OSError):
        return UserError(f"a worker failed: {first_line(cause)}; repeat the command to go on")
    why = last_line(str(error)) or "no message"
    return UserError(f"{type(error).__name__} of Ray: {why}; repeat the command to go on")
