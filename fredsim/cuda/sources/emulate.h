// Runs kernels on the processor, block after block and thread after thread, with the bits that a device gives.
//
// The threads of a block take turns on fibers: one runs until it is done or at a barrier. As long as none meets a
// barrier, they share one fiber, and a block is a plain loop. Shared memory is full of NaNs when a block begins. Copies
// that go on while the threads compute are done when a thread waits for them, no earlier. Of races between threads, the
// bits show those that depend on whose turn is first, which tests reverse. A checker that is told of all accesses shows
// the others (tests/race_checker), as NVIDIA's compute-sanitizer does on a device.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS  // C's own headers: those of C++ take half of the time of compiling a rule
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define DEVICE static inline
#define METHOD inline
#define UNROLL
#define UNROLL_LITTLE
#define UNROLL_NOT
struct Place {
  unsigned x, y, z;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
static Place threadIdx, blockIdx, blockDim, gridDim;

#ifndef ON_BLOCK                  // What a checker is told of, by default nobody:
#define ON_BLOCK(kernel, stream)  // a block of a launch on a stream begins,
#define ON_BLOCK_END()            // and ends;
#define ON_BARRIER()              // a thread has come to a barrier;
#define ON_READ(at)               // it reads what no thread writes during the launch;
#define ON_COPY(copy)             // it begins a copy,
#define ON_COPIED(copy)           // and has waited for it: it is done now
#endif

// ---- fibers
static const int MOST_THREADS = 1024, STACK = 64 << 10, MOST_SHARED = 224 << 10;
struct Fiber {
  jmp_buf here;
  ucontext_t start;
  bool started, waits;
  int thread;
};
extern "C" {
int emulated_reversed = 0;  // whether the last thread of a block has the first turn: tests set it
}
static Fiber fibers[MOST_THREADS];
static jmp_buf scheduler;
static Fiber* now;
static int next_thread;
static void (*body)(const void*);
static const void* arguments;
alignas(128) static unsigned char shared_memory[MOST_SHARED];
#define SHARED(type, name) type* const name = (type*)shared_memory

struct Copy {
  float* to;
  const float* from;
  int count;
  bool valid;
};
struct Copies {  // those that a thread has begun, and where its groups of them end
  Copy ring[256];
  unsigned group_end[16], begun, done, groups;
};
static Copies copies[MOST_THREADS];

static void run_threads() {  // on a fiber: take one thread after the other
  for (;;) {
    while (next_thread < (int)blockDim.x) {
      const int turn = next_thread++;
      threadIdx.x = now->thread = emulated_reversed ? (int)blockDim.x - 1 - turn : turn;
      Copies& own = copies[threadIdx.x];
      own.begun = own.done = own.groups = 0;
      body(arguments);
    }
    now->waits = false;
    if (!_setjmp(now->here)) _longjmp(scheduler, 1);
  }
}
static __attribute__((noinline)) void go_on(Fiber* fiber) {
  now = fiber;
  threadIdx.x = fiber->thread;
  if (_setjmp(scheduler)) return;
  if (fiber->started) _longjmp(fiber->here, 1);
  fiber->started = true;
  getcontext(&fiber->start);
  fiber->start.uc_stack.ss_sp = malloc(STACK);
  fiber->start.uc_stack.ss_size = STACK;
  fiber->start.uc_link = nullptr;
  makecontext(&fiber->start, run_threads, 0);
  setcontext(&fiber->start);
}
static __attribute__((noinline)) void barrier() {
  ON_BARRIER();
  now->waits = true;
  if (!_setjmp(now->here)) _longjmp(scheduler, 1);
}
static bool any;
static bool barrier_or(bool one) {
  any = any || one;
  barrier();
  const bool found = any;
  barrier();
  any = false;
  barrier();
  return found;
}
static void run_block() {
  next_thread = 0;
  int used = 0;
  while (next_thread < (int)blockDim.x) go_on(&fibers[used++]);
  for (bool going = true; going;) {
    going = false;
    for (int i = 0; i < used; i++) {
      Fiber* const fiber = &fibers[emulated_reversed ? used - 1 - i : i];
      if (!fiber->waits) continue;
      go_on(fiber);
      going = going || fiber->waits;
    }
  }
}

// ---- launches, with the arguments of cuLaunchKernel; a kernel is known by the address of its Emulated
struct Emulated {
  void (*body)(const void*);
  long long size, threads, bytes;
};
static const unsigned MOST_ALONG_X = 0x7fffffff, MOST_ALONG_OTHERS = 0xffff;  // the blocks of a grid
static bool busy = false;
extern "C" long long emulated_size(const Emulated* kernel) { return kernel->size; }
extern "C" int emulated_launch(const Emulated* kernel, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                               unsigned, unsigned, void* stream, void** parameters, void**) {
  if (threads != kernel->threads || kernel->bytes > MOST_SHARED || threads > MOST_THREADS) return 1;
  if (!x || !y || !z || x > MOST_ALONG_X || y > MOST_ALONG_OTHERS || z > MOST_ALONG_OTHERS) return 1;
  while (__atomic_test_and_set(&busy, __ATOMIC_ACQUIRE)) {
  }
  body = kernel->body;
  arguments = parameters[0];
  gridDim = {x, y, z};
  blockDim = {threads, 1, 1};
  for (blockIdx.z = 0; blockIdx.z < z; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < y; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < x; blockIdx.x++) {
        memset(shared_memory, 0xff, kernel->bytes);
        ON_BLOCK(kernel, stream);
        run_block();
        ON_BLOCK_END();
      }
  __atomic_clear(&busy, __ATOMIC_RELEASE);
  return 0;
}
#define KERNEL(name, Arguments, threads, bytes)                                               \
  static void name##_body(const Arguments& p);                                                \
  extern "C" const Emulated name = {[](const void* given) { name##_body(*(const Arguments*)given); }, \
                                    sizeof(Arguments), threads, bytes};                       \
  static void name##_body(const Arguments& p)

// ---- what a device has
template <class To, class From> DEVICE To same_bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "of one size");
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}
DEVICE float float_of(int bits) { return same_bits<float>(bits); }
DEVICE int bits_of(float x) { return same_bits<int>(x); }
DEVICE double double_of(i64 bits) { return same_bits<double>(bits); }
DEVICE i64 bits_of(double x) { return same_bits<i64>(x); }
DEVICE u32 high_half(u32 x, u32 y) { return (u64)x * y >> 32; }
DEVICE float read(const float* at) { ON_READ(at); return *at; }
DEVICE int read(const int* at) { ON_READ(at); return *at; }
DEVICE float* read(float* const* at) { ON_READ(at); return *at; }
DEVICE void lower(int* at, int x) {
  if (x < __atomic_load_n(at, __ATOMIC_RELAXED)) __atomic_store_n(at, x, __ATOMIC_RELAXED);
}
DEVICE void raise(int* at, int x) {
  if (x > __atomic_load_n(at, __ATOMIC_RELAXED)) __atomic_store_n(at, x, __ATOMIC_RELAXED);
}

// ---- copies that go on while the threads compute
DEVICE void begin_copy(float* to, const float* from, int count, bool valid) {
  Copies& own = copies[threadIdx.x];
  if (own.begun - own.done >= 256) abort();
  Copy& copy = own.ring[own.begun++ % 256];
  copy = {to, from, count, valid};
  ON_COPY(copy);
}
DEVICE void copy4(float* to, const float* from, bool valid) { begin_copy(to, from, 1, valid); }
DEVICE void copy16(float* to, const float* from, bool valid = true) { begin_copy(to, from, 4, valid); }
DEVICE void end_group() {
  Copies& own = copies[threadIdx.x];
  own.group_end[own.groups++ % 16] = own.begun;
}
template <int N> DEVICE void wait_for() {
  Copies& own = copies[threadIdx.x];
  if (own.groups <= N) return;
  for (const unsigned end = own.group_end[(own.groups - N - 1) % 16]; (int)(end - own.done) > 0; own.done++) {
    const Copy& copy = own.ring[own.done % 256];
    ON_COPIED(copy);
    for (int i = 0; i < copy.count; i++) copy.to[i] = copy.valid ? copy.from[i] : 0.0f;
  }
}
