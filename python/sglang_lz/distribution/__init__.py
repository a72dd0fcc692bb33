"""The distribution: how upstream SGLang plus our patches becomes one wheel, and its checks.

Standard library, ``pip`` and ``git`` only, so that it runs in an empty virtual environment, before
anything is installed. It never imports ``sglang`` or ``torch``.
"""
