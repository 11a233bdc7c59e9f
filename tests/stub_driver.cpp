// A library in the place of NVIDIA's driver, for tests/test_cuda_driver.py: memory is the host's, and a module is the path
// of a library with emulated kernels (fredsim/cuda/sources/emulate.h).
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API extern "C" __attribute__((visibility("default"))) int
typedef unsigned long long Address;
struct Function {
  void* kernel;
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
};
static const int OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NOT_FOUND = 500, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76;

API cuInit(unsigned) { return 0; }
API cuDriverGetVersion(int* version) { return *version = 13000, 0; }
API cuDeviceGet(int* device, int number) { return *device = number, 0; }
API cuDeviceGetName(char* name, int size, int) { return snprintf(name, size, "Stub"), 0; }
API cuDeviceGetAttribute(int* value, int kind, int) {
  const int major = getenv("STUB_CAPABILITY") ? atoi(getenv("STUB_CAPABILITY")) : 9;
  *value = kind == CAPABILITY_MAJOR ? major : kind == CAPABILITY_MINOR ? 0 : -1;
  return 0;
}
API cuDevicePrimaryCtxRetain(void** context, int) { return *context = (void*)1, getenv("STUB_BUSY") ? 46 : 0; }
static thread_local bool current = false;  // whether this thread has a context
static int live = 0;                       // how often memory was allocated and not freed
API stub_live() { return live; }
API cuCtxSetCurrent(void*) { return current = true, 0; }
API cuDeviceGetDefaultMemPool(void** pool, int) { return *pool = (void*)2, 0; }
API cuMemPoolSetAttribute(void*, int, void* value) { return *(Address*)value == ~0ull ? 0 : 1; }
static Address streams = 0;
API cuStreamCreate(Address* stream, unsigned flags) { return *stream = ++streams << 8, flags != 0; }
API cuMemAllocAsync(Address* at, size_t size, void*) {
  if (size > 1ull << 32) return OUT_OF_MEMORY;
  *at = (Address)aligned_alloc(256, (size + 255) / 256 * 256);
  memset((void*)*at, 0xff, size);
  live++;
  return 0;
}
API cuMemFreeAsync(Address at, void*) { return current ? live--, free((void*)at), 0 : INVALID_CONTEXT; }
API cuMemHostAlloc(void** at, size_t size, unsigned flags) {
  *at = aligned_alloc(256, (size + 255) / 256 * 256);
  memset(*at, 0xff, size);
  live++;
  return flags == 3 ? 0 : 1;
}
API cuMemFreeHost(void* at) { return current ? live--, free(at), 0 : INVALID_CONTEXT; }
API cuStreamSynchronize(void*) { return current ? 0 : INVALID_CONTEXT; }
API cuMemGetInfo_v2(size_t* unused, size_t* total) { return *unused = 1 << 20, *total = 1 << 30, 0; }
API cuMemPoolGetAttribute(void*, int kind, void* value) {  // of 6 MiB that are kept, 1 is used
  return *(Address*)value = (kind == 5 ? 6 : 1) << 20, kind == 5 || kind == 7 ? 0 : 1;
}
API cuMemcpyAsync(Address to, Address from, size_t size, void*) { return memcpy((void*)to, (void*)from, size), 0; }
API cuMemcpyHtoD_v2(Address to, const void* from, size_t size) { return memcpy((void*)to, from, size), 0; }
API cuMemcpyDtoH_v2(void* to, Address from, size_t size) { return memcpy(to, (void*)from, size), 0; }
API cuModuleLoadData(void** module, const void* path) {
  *module = dlopen((const char*)path, RTLD_NOW);
  return *module ? 0 : NOT_FOUND;
}
API cuModuleGetFunction(void** function, void* module, const char* name) {
  Function* found = (Function*)malloc(sizeof(Function));
  found->kernel = dlsym(module, name);
  *(void**)&found->launch = dlsym(module, "emulated_launch");
  *function = found;
  return found->kernel && found->launch ? 0 : NOT_FOUND;
}
API cuFuncSetAttribute(void*, int, int bytes) { return bytes > 48 * 1024 ? 0 : 1; }
API cuLaunchKernel(Function* f, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned one, unsigned also_one,
                   unsigned shared, void* stream, void** parameters, void** extra) {
  if (one != 1 || also_one != 1 || (Address)stream > streams << 8 || extra) return 1;
  return f->launch(f->kernel, x, y, z, threads, one, also_one, shared, stream, parameters, extra);
}
API cuGetProcAddress_v2(const char* name, void** function, int, Address, int* status) {
  void* const here = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  char newer[100];
  snprintf(newer, sizeof newer, "%s_v2", name);
  *function = dlsym(here, newer);
  if (!*function) *function = dlsym(here, name);
  if (status) *status = *function ? 0 : 1;
  return *function ? 0 : NOT_FOUND;
}
