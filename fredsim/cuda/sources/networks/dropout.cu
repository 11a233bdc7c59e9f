// Dropout, of B minibatches: x·(1/(1 − p)) where a uniform draw is p at least, else +0. There are no sums here.
#include "common.h"
#include "networks/draws.h"

struct Dropout {
  const float* x;  // (B, size): values, or errors
  float* out;
  i64 size;
  Drawn drawn;
};

KERNEL(drop, Dropout, 128, 0) {
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x, at = blockIdx.z * p.size + i;
  if (i < p.size) p.out[at] = dropped(p.drawn, i, p.x[at]);
}
