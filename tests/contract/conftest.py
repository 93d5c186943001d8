from __future__ import annotations

import pytest

# the suites are no test modules themselves, and their assertions are to be shown as those of one
pytest.register_assert_rewrite("contract.source_suite", "contract.runner_suite")
