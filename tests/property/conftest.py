"""Laws are about results: on cores shared with others an example may take any time."""

from hypothesis import settings

settings.register_profile("without_deadline", deadline=None)
settings.load_profile("without_deadline")
