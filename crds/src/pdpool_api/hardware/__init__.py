"""Hardware profiles: one YAML each, and their loader."""

from pdpool_api.hardware.profile import (
    DEFAULT,
    EngineSettings,
    Profile,
    accelerator_resources,
    profile,
    profiles,
)

__all__ = ["DEFAULT", "EngineSettings", "Profile", "accelerator_resources", "profile", "profiles"]
