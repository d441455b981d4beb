"""A job's settings, from all who may set them, as far as its framework can follow them."""

from collections.abc import Callable
from dataclasses import replace

from gemini_lab.engine.frameworks.framework import Framework
from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.errors import ConfigError
from gemini_lab.recovery.messages import JobOrder
from gemini_lab.settings import LOGGED_RANKS, SCHEDULED, Settings
from gemini_lab.storage import absolute_url


def read_settings(framework: Framework, order: JobOrder, remark: Callable[[str], None]) -> Settings:
    """The job's settings: the lab's defaults, the script's own, what the launcher was told.

    What comes later replaces what comes before. Where nobody sees training's collectives, versions
    leave at once, and the settings say so. Whether the log has them is settled by the job's size
    where nobody has said it.

    Args:
        framework: Has the script's own.
        order: Has the others.
        remark: Told what is not possible here.

    Raises:
        ConfigError: A setting is unknown or impossible, or emulates a link where nobody can.
    """
    settings = Settings.layered(order.defaults, framework.settings(), order.settings)
    if (url := settings.persistent_url) is not None:  # the script may be in another folder by now
        settings = replace(settings, persistent_url=absolute_url(url, cwd=order.job.cwd))
    for name in ("risk_from", "preload"):
        if name in framework.settings() and name not in order.settings:
            remark(
                f"{name} is read by the launcher, which does not see the script's configuration, "
                f"so it does nothing there. Give it to the launcher: --set {name}=..."
            )
    if settings.keep_gradients and framework.settings().get("keep_gradients") is not True:
        raise ConfigError(
            "keep_gradients changes what a version is made of, which is settled before launchers "
            'are heard; set it in the "gemini" block of the script\'s DeepSpeed configuration'
        )
    if settings.log_collectives is None:
        settings = replace(settings, log_collectives=order.seats.world_size <= LOGGED_RANKS)
    if isinstance(framework.engine, TorchEngine):
        if settings.link_bytes_per_s is not None:
            raise ConfigError(
                "link_bytes_per_s paces training's collectives, and those of plain PyTorch are not "
                "seen; leave it out, or train with DeepSpeed"
            )
        if settings.scheme in SCHEDULED:
            remark(
                f"the scheme {settings.scheme!r} needs to see training's collectives, which it "
                'does under DeepSpeed alone; versions leave at once: the scheme is "background"'
            )
            settings = replace(settings, scheme="background")
        settings = replace(settings, log_collectives=False)
    return settings
