"""Files that only the CPU flavour of the wheel needs: its dependencies, environment and kernels.

- `requirements.txt`: replaces upstream's dependency list, which is for CUDA.
- `sgl_kernel/`: becomes the top-level package `sgl_kernel` of the CPU wheel.
- `environment.py`: called by the patches of the group `cpu`.
"""
