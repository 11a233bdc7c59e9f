// A library in the place of NVIDIA's driver, for tests/test_cuda_driver.py: memory is the host's, and a module is the path
// of a library with emulated kernels (fredsim/cuda/sources/emulate.h).
//
// What is queued is done as late as a device may do it: when the host waits for it, or copies to or from the device's
// memory; the host's own memory may be copied before. Memory that is freed is full of NaNs for what still uses it.
#include <algorithm>
#include <deque>
#include <dlfcn.h>
#include <functional>
#include <malloc.h>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int
typedef unsigned long long Address;
struct Function {
  void* kernel;
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  long long (*size)(void*);  // of its structure
};
struct Work {
  Address stream;
  std::function<void()> done;
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
static std::deque<Work> queued;
static std::map<Address, size_t> pinned;  // where memory of the host begins that a device uses, and its bytes
static std::mutex door;
#define LOCKED const std::lock_guard<std::mutex> locked(door)
static bool is_pinned(Address at) {
  const auto next = pinned.upper_bound(at);
  return next != pinned.begin() && at < std::prev(next)->first + std::prev(next)->second;
}
static void let_go(Address at) {
  memset((void*)at, 0xff, malloc_usable_size((void*)at));
  free((void*)at);
}
static void finish() {  // the default stream is in order with all others; of those the last one goes first
  while (!queued.empty()) {
    auto end = std::find_if(queued.begin(), queued.end(), [](const Work& one) { return !one.stream; });
    std::stable_sort(queued.begin(), end, [](const Work& one, const Work& other) { return one.stream > other.stream; });
    if (end != queued.end()) end++;
    std::for_each(queued.begin(), end, [](const Work& one) { one.done(); });
    queued.erase(queued.begin(), end);
  }
}
API cuStreamCreate(Address* stream, unsigned flags) { return *stream = ++streams << 8, flags != 0; }
API cuMemAllocAsync(Address* at, size_t size, void*) {
  if (size > 1ull << 32) return OUT_OF_MEMORY;
  *at = (Address)aligned_alloc(256, (size + 255) / 256 * 256);
  memset((void*)*at, 0xff, size);
  LOCKED;
  live++;
  return 0;
}
API cuMemFreeAsync(Address at, void*) {
  if (!current) return INVALID_CONTEXT;
  LOCKED;
  live--;
  queued.push_back({0, [=] { let_go(at); }});
  return 0;
}
API cuMemHostAlloc(void** at, size_t size, unsigned flags) {
  *at = aligned_alloc(256, (size + 255) / 256 * 256);
  memset(*at, 0xff, size);
  LOCKED;
  live++;
  pinned[(Address)*at] = size;
  return flags == 3 ? 0 : 1;
}
API cuMemFreeHost(void* at) {
  if (!current) return INVALID_CONTEXT;
  LOCKED;
  live--;
  pinned.erase((Address)at);
  let_go((Address)at);
  return 0;
}
API cuStreamSynchronize(void*) {
  if (!current) return INVALID_CONTEXT;
  LOCKED;
  finish();
  return 0;
}
API cuMemGetInfo_v2(size_t* unused, size_t* total) { return *unused = 1 << 20, *total = 1 << 30, 0; }
API cuMemPoolGetAttribute(void*, int kind, void* value) {  // of 6 MiB that are kept, 1 is used
  return *(Address*)value = (kind == 5 ? 6 : 1) << 20, kind == 5 || kind == 7 ? 0 : 1;
}
API cuMemcpyAsync(Address to, Address from, size_t size, void*) {
  LOCKED;
  queued.push_back({0, [=] { memcpy((void*)to, (void*)from, size); }});
  return 0;
}
API cuMemcpyHtoD_v2(Address to, const void* from, size_t size) {
  LOCKED;
  if (!is_pinned(to)) finish();
  memcpy((void*)to, from, size);
  return 0;
}
API cuMemcpyDtoH_v2(void* to, Address from, size_t size) {
  LOCKED;
  if (!is_pinned(from)) finish();
  memcpy(to, (void*)from, size);
  return 0;
}
API cuModuleLoadData(void** module, const void* path) {
  *module = dlopen((const char*)path, RTLD_NOW);
  return *module ? 0 : NOT_FOUND;
}
API cuModuleGetFunction(void** function, void* module, const char* name) {
  Function* found = (Function*)malloc(sizeof(Function));
  found->kernel = dlsym(module, name);
  *(void**)&found->launch = dlsym(module, "emulated_launch");
  *(void**)&found->size = dlsym(module, "emulated_size");
  *function = found;
  return found->kernel && found->launch && found->size ? 0 : NOT_FOUND;
}
API cuFuncSetAttribute(void*, int, int bytes) { return bytes > 48 * 1024 ? 0 : 1; }
API cuLaunchKernel(Function* f, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned one, unsigned also_one,
                   unsigned shared, void* stream, void** parameters, void** extra) {
  if (one != 1 || also_one != 1 || (Address)stream > streams << 8 || extra) return 1;
  const char* const structure = (const char*)parameters[0];  // copied now, as by the driver
  const std::vector<char> copied(structure, structure + f->size(f->kernel));
  LOCKED;
  queued.push_back({(Address)stream, [=] {
                      void* given[] = {(void*)copied.data()};
                      if (f->launch(f->kernel, x, y, z, threads, 1, 1, shared, stream, given, nullptr)) abort();
                    }});
  return 0;
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
