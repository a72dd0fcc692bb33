"""The penalties themselves: their state, their kernels, and the definition of both.

Nothing here imports SGLang, directly or through another package, so that another engine can use it.
"""
