"""Where the tests of the Triton kernels run."""

import os

DEVICE = os.environ.get("LZ_TEST_DEVICE", "cpu")
"""`cuda`, or `cpu` for Triton's interpreter."""
