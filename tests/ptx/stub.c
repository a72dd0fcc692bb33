// A stand-in for libcuda.so.1: what Triton's own launcher calls. A launch goes to a callback, if there
// is one.
#include <stdint.h>
#include <string.h>
typedef int CUresult;
typedef struct { unsigned gx, gy, gz, bx, by, bz, smem; void *stream; void *attrs; unsigned n; } Config;
static int (*callback)(void *, unsigned *, void **);
static uint64_t handles = 0x1000;
void emu_set_callback(int (*f)(void *, unsigned *, void **)) { callback = f; }
CUresult cuInit(unsigned f) { return 0; }
CUresult cuDriverGetVersion(int *v) { *v = 13000; return 0; }
CUresult cuDeviceGet(int *d, int o) { *d = 0; return 0; }
CUresult cuDeviceGetCount(int *d) { *d = 1; return 0; }
CUresult cuDeviceGetAttribute(int *p, int a, int d) {
  switch (a) {
    case 97: *p = 232448; break;   // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    case 81: *p = 233472; break;
    case 12: *p = 65536; break;
    case 16: *p = 132; break;
    case 10: *p = 32; break;
    case 75: *p = 9; break; case 76: *p = 0; break;
    default: *p = 1;
  }
  return 0;
}
CUresult cuCtxGetCurrent(void **c) { *c = (void *)1; return 0; }
CUresult cuCtxSetCurrent(void *c) { return 0; }
CUresult cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)1; return 0; }
CUresult cuCtxSetLimit(int l, size_t v) { return 0; }
CUresult cuCtxGetLimit(size_t *v, int l) { *v = 0; return 0; }
CUresult cuModuleLoadData(void **m, const void *d) { *m = (void *)d; return 0; }
CUresult cuModuleGetFunction(void **f, void *m, const char *n) { *f = (void *)(handles += 16); return 0; }
CUresult cuFuncGetAttribute(int *v, int a, void *f) { *v = a == 0 ? 1024 : 0; return 0; }
CUresult cuFuncSetAttribute(void *f, int a, int v) { return 0; }
CUresult cuFuncSetCacheConfig(void *f, int c) { return 0; }
CUresult cuGetErrorString(CUresult e, const char **s) { *s = "error of the stand-in"; return 0; }
CUresult cuPointerGetAttribute(void *data, int a, uint64_t p) { *(uint64_t *)data = p; return 0; }
CUresult cuPointerGetAttributes(unsigned n, int *a, void **data, uint64_t p) { *(uint64_t *)data[0] = p; return 0; }
CUresult cuOccupancyMaxActiveClusters(int *n, void *f, void *c) { *n = 1; return 0; }
CUresult cuTensorMapEncodeTiled() { return 1; }
CUresult cuTensorMapEncodeIm2col() { return 1; }
CUresult cuLaunchKernelEx(Config *c, void *f, void **params, void **extra) {
  unsigned g[8] = {c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->smem, 0};
  return callback ? callback(f, g, params) : 0;
}
