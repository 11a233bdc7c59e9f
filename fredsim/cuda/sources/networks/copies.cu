// The same numbers at other places: samples of the data set, parts, other orders of axes, and what is the same for all
// samples. Numbers of four bytes are copied as they are, also integers. The samples' own
// gradients of a tensor of several nodes are added in the order of the launches.
#include "common.h"

struct Gather {
  const int* x;     // the data set: (n, size)
  const int* rows;  // (B, µ)
  int* out;         // (B, µ, size)
  int mu;
  int size;
};

KERNEL(gather_samples, Gather, 128, 0) {
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x;
  if (i >= (i64)p.mu * p.size) return;
  const i64 first = (i64)blockIdx.z * p.mu;
  p.out[first * p.size + i] = p.x[(i64)p.rows[first + i / p.size] * p.size + i % p.size];
}

struct Section {  // begin … begin + count − 1 of the middle axis of (outer, whole, inner), of each minibatch
  const int* x;
  int* out;
  i64 outer;
  i64 inner;
  int whole;
  int begin;
  int count;
  int fills;      // whether the rest becomes +0
};

KERNEL(take_section, Section, 128, 0) {  // to (outer, count, inner)
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x, row = p.count * p.inner;
  if (i >= p.outer * row) return;
  const i64 from = i / row * p.whole * p.inner + p.begin * p.inner + i % row;
  p.out[blockIdx.z * p.outer * row + i] = p.x[blockIdx.z * p.outer * p.whole * p.inner + from];
}

KERNEL(put_section, Section, 128, 0) {  // from (outer, count, inner)
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x, row = p.whole * p.inner, part = p.count * p.inner;
  if (i >= p.outer * row) return;
  const i64 at = i % row - p.begin * p.inner;
  const bool inside = at >= 0 && at < part;
  if (!inside && !p.fills) return;
  p.out[blockIdx.z * p.outer * row + i] = inside ? p.x[blockIdx.z * p.outer * part + i / row * part + at] : 0;
}

#define AXES 8
struct Permuted {
  const int* x;
  int* out;            // in C order
  i64 size;            // of a minibatch
  i64 stride[AXES];    // of x, along each axis of the output
  i64 shape[AXES];     // of the output; the last axis last
};

KERNEL(permute, Permuted, 128, 0) {
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x;
  if (i >= p.size) return;
  i64 left = i, from = 0;
  UNROLL for (int axis = AXES - 1; axis >= 0; axis--)
    if (p.shape[axis] > 1) {
      from += left % p.shape[axis] * p.stride[axis];
      left /= p.shape[axis];
    }
  p.out[blockIdx.z * p.size + i] = p.x[blockIdx.z * p.size + from];
}

struct Repeated {
  const int* values;          // (size,); null: those of the parameters
  const float* const* held;   // (B,)
  int* out;                   // (B, µ, size)
  i64 at;                     // where they are in the parameters
  int mu;
  int size;
};

KERNEL(repeat, Repeated, 128, 0) {
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x;
  if (i >= (i64)p.mu * p.size) return;
  const int* const from = p.values ? p.values : (const int*)(p.held[blockIdx.z] + p.at);
  p.out[(i64)blockIdx.z * p.mu * p.size + i] = from[i % p.size];
}

struct Own {
  const float* values;  // (B, µ, stride): of which the first `size` are the samples' own gradients of a tensor
  float* out;           // (B, µ, size)
  i64 stride;
  int mu;
  int size;
  int adds;             // whether they are added to what is there
};

KERNEL(keep_own, Own, 128, 0) {
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x;
  if (i >= (i64)p.mu * p.size) return;
  const i64 first = (i64)blockIdx.z * p.mu, to = first * p.size + i;
  const float value = p.values[(first + i / p.size) * p.stride + i % p.size];
  p.out[to] = p.adds ? p.out[to] + value : value;
}
