// Sums of all elements of an array by the balanced binary tree, in double; extremes; whether all are finite.
//
// The order of sums: block after block, each 1024 leaves that are a whole subtree; a thread adds 8 neighbours by the
// tree, then the block the sums of its threads, neighbours first. The sums of blocks are the leaves of the next launch.
#include "common.h"

struct Sum {
  const void* array;     // (n,)
  const double* centre;  // (1,), of squares
  double* out;           // (⌈n ÷ 1024⌉,)
  i64 n;
};

template <class Leaf> DEVICE void sum_block(const Sum& p, Leaf leaf) {
  SHARED(double, sums);  // [128]
  const int t = threadIdx.x;
  double own[8];
  UNROLL for (int i = 0; i < 8; i++) {
    const i64 at = blockIdx.x * (i64)1024 + t * 8 + i;
    own[i] = at < p.n ? leaf(at) : 0.0;
  }
  sums[t] = ((own[0] + own[1]) + (own[2] + own[3])) + ((own[4] + own[5]) + (own[6] + own[7]));
  barrier();
  for (int apart = 1; apart < 128; apart *= 2) {
    if (t % (2 * apart) == 0) sums[t] = sums[t] + sums[t + apart];
    barrier();
  }
  if (t == 0) p.out[blockIdx.x] = sums[0];
}

KERNEL(sum_floats, Sum, 128, 8 * 128) {
  sum_block(p, [&](i64 i) { return (double)((const float*)p.array)[i]; });
}
KERNEL(sum_doubles, Sum, 128, 8 * 128) {
  sum_block(p, [&](i64 i) { return ((const double*)p.array)[i]; });
}
KERNEL(sum_squares, Sum, 128, 8 * 128) {  // of (x − centre)²
  sum_block(p, [&](i64 i) {
    const double apart = (double)((const float*)p.array)[i] - p.centre[0];
    return apart * apart;
  });
}

struct Look {
  const float* array;  // (n,)
  int* found;          // (1,)
  i64 n;
};

KERNEL(find_infinite, Look, 128, 0) {  // sets `found` if an element is not finite
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x;
  if (i < p.n && p.array[i] * 0.0f != 0.0f) raise(p.found, 1);
}

KERNEL(find_largest, Look, 128, 0) {  // raises `found` to the bits of max|x|; a NaN's are larger than all others
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x;
  if (i < p.n) raise(p.found, bits_of(p.array[i]) & 0x7fffffff);
}
