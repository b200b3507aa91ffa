"""What every test runs under: repeatable Hypothesis examples and a fixed terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

# The same examples on every machine, so that a change is judged by the change alone. Look for new
# counter-examples with `pytest --hypothesis-profile=explore`.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("explore", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def fixed_terminal() -> Iterator[None]:
    """Give tables the same width and no colour wherever the tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        patch.setenv("NO_COLOR", "1")
        patch.setenv("TERM", "dumb")
        patch.delenv("FORCE_COLOR", raising=False)
        yield
