"""The distribution: builds one wheel from upstream SGLang and our patches, and checks it.

It uses only the standard library, ``pip`` and ``git``, so that it runs in an empty virtual
environment before anything is installed. It never imports ``sglang`` or ``torch``.
"""
