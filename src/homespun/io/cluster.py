"""Connection to a Ray cluster."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

from homespun.errors import UserError, first_line


def connect() -> Any:
    """Join the Ray cluster of ``RAY_ADDRESS``, or start one on this machine; returns the module ``ray``.

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
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=None if address else False,
            )
            logging.getLogger("ray.data").setLevel(logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(
                f"cannot reach the Ray cluster {address or 'of this machine'} ({first_line(error)}); start it with "
                f"`ray start --head`, or correct RAY_ADDRESS"
            ) from error
    return ray


def refusal(error: Exception) -> UserError:
    """The `UserError` of a task, or one with the last line of another error of Ray."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, UserError):
        return UserError(str(cause))
    if isinstance(cause, OSError):
        return UserError(f"a worker failed: {first_line(cause)}; repeat the command to go on")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return UserError(
        f"{type(error).__name__} of Ray: {lines[-1] if lines else 'no message'}; repeat the command to go on"
    )
