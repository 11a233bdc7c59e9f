// What every kernel is written with. A kernel takes one structure by value:
//
//     KERNEL(name, Arguments, threads, bytes) { ... p.field ... }
//
// `threads` is the size of its blocks, `bytes` the shared memory of a block, both written as products and sums of
// numbers: Python reads them, and the fields of the structures, from these files (fredsim/cuda/kernels.py). Fields are
// pointers, i64, int, float and double, alone or in arrays of one dimension, each on a line of its own.
//
// Products and sums are compiled one by one (-fmad=false, -ffp-contract=off), so + - * / and sqrtf round as NumPy does.
typedef long long i64;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned char u8;

#ifndef EMULATED
#define DEVICE __device__ __forceinline__
#define METHOD DEVICE  // of a structure
#ifndef RESIDENT  // threads of a multiprocessor at least: so the compiler gives none more than 168 registers
#define RESIDENT 384
#endif
#define KERNEL(name, Arguments, threads, bytes)                                                \
  extern "C" __global__ void __launch_bounds__(threads, threads < 64 ? 1 : RESIDENT / threads) \
      name(const __grid_constant__ Arguments p)
extern __shared__ __align__(16) unsigned char shared_memory[];
#define SHARED(type, name) type* const name = (type*)shared_memory
#define UNROLL _Pragma("unroll")
#define UNROLL_LITTLE _Pragma("unroll 4")
#define UNROLL_NOT _Pragma("unroll 1")
DEVICE float float_of(int bits) { return __int_as_float(bits); }
DEVICE int bits_of(float x) { return __float_as_int(x); }
DEVICE double double_of(i64 bits) { return __longlong_as_double(bits); }
DEVICE i64 bits_of(double x) { return __double_as_longlong(x); }
DEVICE u32 high_half(u32 x, u32 y) { return __umulhi(x, y); }
DEVICE void barrier() { __syncthreads(); }
// A barrier that returns whether any thread of the block gave true.
DEVICE bool barrier_or(bool one) { return __syncthreads_or(one); }
// Reads what no thread writes during the launch, so that it may be read earlier than written in the source.
DEVICE float read(const float* at) { return __ldg(at); }
DEVICE int read(const int* at) { return __ldg(at); }
DEVICE float* read(float* const* at) { return (float*)__ldg((const i64*)at); }
DEVICE void lower(int* at, int x) { atomicMin(at, x); }
DEVICE void raise(int* at, int x) { atomicMax(at, x); }
// Copies between global and shared memory that go on while the threads compute, in groups: `copy` begins one of 4 or 16
// bytes, and one that is not `valid` writes zeros; `end_group` ends a group; `wait_for` waits until at most N of them are
// under way.
#if __CUDA_ARCH__ >= 800
DEVICE void copy4(float* to, const float* from, bool valid) {
  const u32 address = (u32)__cvta_generic_to_shared(to);
  const int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(address), "l"(from), "r"(bytes));
}
DEVICE void copy16(float* to, const float* from, bool valid) {
  const u32 address = (u32)__cvta_generic_to_shared(to);
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(from), "r"(bytes));
}
DEVICE void copy16(float* to, const float* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from));
}
DEVICE void end_group() { asm volatile("cp.async.commit_group;\n" ::); }
template <int N> DEVICE void wait_for() { asm volatile("cp.async.wait_group %0;\n" ::"n"(N)); }
#else  // older devices have no such copies: each is done at once
DEVICE void copy4(float* to, const float* from, bool valid) { *to = valid ? *from : 0.0f; }
DEVICE void copy16(float* to, const float* from, bool valid) {
  *(float4*)to = valid ? *(const float4*)from : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}
DEVICE void copy16(float* to, const float* from) { *(float4*)to = *(const float4*)from; }
DEVICE void end_group() {}
template <int N> DEVICE void wait_for() {}
#endif
#else
#include "emulate.h"
#endif

#define INFINITE float_of(0x7f800000)
#define NOT_A_NUMBER float_of(0x7fc00000)

DEVICE float positive(float x) { return x > 0.0f ? x : 0.0f; }
template <class T> DEVICE T smaller(T x, T y) { return x < y ? x : y; }
template <class T> DEVICE T larger(T x, T y) { return x > y ? x : y; }

DEVICE float mean_of(float sum, int mu) {
  const float total = sum + 0.0f, count = (float)mu;
  return (mu & (mu - 1)) == 0 ? total * (1.0f / count) : total / count;  // by a power of two, a product is the quotient
}

// Up to four neighbours of an array; `whole`: it is known that there are four, and that they lie like a float4.
DEVICE void read_four(float* four, const float* from, int count, bool whole) {
  UNROLL for (int c = 0; c < 4; c++) four[c] = 0.0f;
  if (whole) *(float4*)four = *(const float4*)from;
  else
    UNROLL for (int c = 0; c < 4; c++)
      if (c < count) four[c] = from[c];
}

DEVICE void write_four(float* to, const float* four, int count, bool whole) {
  if (whole) *(float4*)to = *(const float4*)four;
  else
    UNROLL for (int c = 0; c < 4; c++)
      if (c < count) to[c] = four[c];
}

DEVICE bool lies_in_fours(const float* at) { return ((i64)at & 15) == 0; }

// Begin copies of four neighbours to shared memory, of which the first `count` exist; the others become +0. `some` is
// any address that may be read.
DEVICE void copy_some(float* to, const float* from, const float* some, int count) {
  UNROLL for (int c = 0; c < 4; c++) copy4(to + c, c < count ? from + c : some, c < count);
}

// A thread's place in a block of 8 × ACROSS threads, which have a tile in common. A warp has 4 × 8 of these places, such
// that lanes 2·i and 2·i + 1 have one row, and i and i + 2 mostly one column: so eight lanes in turn read at most two
// rows and four columns, and no two of these are in the same banks of shared memory.
struct Lane {
  int row;
  int column;
};
template <int ACROSS> DEVICE Lane lane_of() {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = (lane >> 1 & 1) + (lane >> 4) * 2, column = (lane & 1) + (lane >> 2 & 3) * 2;
  return {warp / (ACROSS / 8) * 4 + row, warp % (ACROSS / 8) * 8 + column};
}
