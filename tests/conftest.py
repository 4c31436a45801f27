"""Settings of every test."""

from hypothesis import settings

# No test asserts speed: a busy machine must not fail a property.
settings.register_profile("pdpool", deadline=None, print_blob=True)
settings.load_profile("pdpool")
