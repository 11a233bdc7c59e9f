// Gradients of dense layers, means over the µ samples of each of B minibatches.
//
// The order of sums: the leaves x[m, k]·e[m, j] of a weight, or 1·e[m, j] of a bias, are added by the balanced binary
// tree over m; + 0 at the end, then ÷ µ once. A leaf that is missing is +0, which changes no sum but −0.
// A block sums at most LEAVES = 128 samples; of larger minibatches, `sum_parts` adds the sums of these by the tree.
#include "gradients.h"
#include "tree.h"

template <int COUNT> DEVICE float tree_sum(const float* x, const float (*e)[4], int c) {  // of leaves x[m]·e[m][c]
  if constexpr (COUNT == 1) return x[0] * e[0][c];
  else return tree_sum<COUNT / 2>(x, e, c) + tree_sum<COUNT / 2>(x + COUNT / 2, e + COUNT / 2, c);
}

// Tiles of 64 rows (inputs) × 64 columns: a thread has 8 × 4 sums; 16 samples at a time are in shared memory, twice.
// Sums of 32 and of 64 leaves that wait for their neighbours are in shared memory, too.
KERNEL(gradient_64, Gradients, 128, 4 * (2 * 64 * 20 + 2 * 16 * 64 + 2 * 8 * 128 * 4)) {
  constexpr int S = 16, PX = 20, T = 128;
  SHARED(float, shared);
  float* const xs = shared;                                            // [2][64][PX]
  float* const es = shared + 2 * 64 * PX;                              // [2][S][64]
  float4* const waiting = (float4*)(es + 2 * S * 64) + threadIdx.x;    // [2][8][T]
  const int l = layer_of(p), inputs = p.inputs[l], width = p.width[l], tiles = (width + 63) / 64;
  const int index = blockIdx.x - p.first_tile[l], k0 = index / tiles * 64, n0 = index % tiles * 64;
  const int t = threadIdx.x, ti = t / 16, tj = t % 16, b = blockIdx.z, begin = blockIdx.y * 128;
  const int end = smaller(p.mu, begin + 128);
  const bool gathered = p.gathered[l];
  const float* const x = p.x[l];
  const float* const errors = p.errors[l] + (i64)b * p.mu * width;
  const int pairs = (end - begin + 31) / 32, steps = 2 * pairs;
  float fx[8], fe[8];
  auto fetch = [&](int step) {
    const int m0 = begin + step * S;
    UNROLL for (int i = 0; i < 8; i++) {  // of x, 16 samples × 64 inputs: neighbours have neighbouring inputs
      const int id = t + i * T, m = m0 + id / 64, k = k0 + id % 64;
      const i64 sample = (i64)b * p.mu + m;
      float value = m < end && k == inputs ? 1.0f : 0.0f;
      if (m < end && k < inputs) {
        value = x[(gathered ? (i64)p.rows[sample] : sample) * inputs + k];
        if (!gathered) value = positive(value);
      }
      fx[i] = value;
    }
    UNROLL for (int i = 0; i < 8; i++) {
      const int id = t + i * T, m = m0 + id / 64, n = n0 + id % 64;
      fe[i] = m < end && n < width ? errors[(i64)m * width + n] : 0.0f;
    }
  };
  auto put = [&](int half) {
    UNROLL for (int i = 0; i < 8; i++) {
      const int id = t + i * T;
      xs[(half * 64 + id % 64) * PX + id / 64] = fx[i];
      es[(half * S + id / 64) * 64 + id % 64] = fe[i];
    }
  };
  float sum[8][4];
  fetch(0);
  put(0);
  barrier();
  for (int pair = 0, step = 0; pair < pairs; pair++) {
    UNROLL for (int i = 0; i < 8; i++)
      UNROLL for (int c = 0; c < 4; c++) sum[i][c] = 0.0f;
    for (int half = 0; half < 2; half++, step++) {
      if (step + 1 < steps) fetch(step + 1);
      const float* const X = xs + ((step & 1) * 64 + ti * 8) * PX;
      const float* const E = es + (step & 1) * S * 64 + tj * 4;
      float e[S][4];
      UNROLL for (int m = 0; m < S; m++) *(float4*)e[m] = *(const float4*)(E + m * 64);
      UNROLL for (int i = 0; i < 8; i++) {
        float row[S];
        UNROLL for (int m = 0; m < S; m += 4) *(float4*)(row + m) = *(const float4*)(X + i * PX + m);
        UNROLL for (int c = 0; c < 4; c++) sum[i][c] = sum[i][c] + tree_sum<S>(row, e, c);
      }
      if (step + 1 < steps) put((step + 1) & 1);
      barrier();
    }
    const bool last = pair == pairs - 1;
    auto join = [&](int level) {
      UNROLL for (int i = 0; i < 8; i++) {
        float before[4];
        *(float4*)before = waiting[(level * 8 + i) * T];
        UNROLL for (int c = 0; c < 4; c++) sum[i][c] = before[c] + sum[i][c];
      }
    };
    auto leave = [&](int level) {
      UNROLL for (int i = 0; i < 8; i++) waiting[(level * 8 + i) * T] = *(float4*)sum[i];
    };
    if (pair & 1) join(0);
    else if (!last) leave(0);
    if ((pair & 1) || last) {
      if (pair & 2) join(1);
      else if (!last) leave(1);
    }
  }
  float* const out = p.out + ((i64)b * p.parts + blockIdx.y) * p.stride + p.at[l];
  UNROLL for (int i = 0; i < 8; i++) {
    const int k = k0 + ti * 8 + i;
    UNROLL for (int c = 0; c < 4; c++) {
      const int n = n0 + tj * 4 + c;
      if (k <= inputs && n < width) out[(i64)k * width + n] = p.parts == 1 ? mean_of(sum[i][c], p.mu) : sum[i][c];
    }
  }
}

// At most 8 samples: a thread has ROWS rows of one column, without shared memory.
template <int MU> DEVICE void thin_gradient(const Gradients& p) {
  const Strip strip = strip_of(p);
  if (strip.count <= 0) return;
  float sums[ROWS];
  strip_gradient<MU>(p, strip, blockIdx.z, sums);
  float* const out = p.out + blockIdx.z * p.stride + strip.place;
  for (int i = 0; i < strip.count; i++) out[(i64)i * strip.width] = sums[i];
}

KERNEL(gradient_thin_1, Gradients, 128, 0) { thin_gradient<1>(p); }
KERNEL(gradient_thin_2, Gradients, 128, 0) { thin_gradient<2>(p); }
KERNEL(gradient_thin_4, Gradients, 128, 0) { thin_gradient<4>(p); }
KERNEL(gradient_thin_8, Gradients, 128, 0) { thin_gradient<8>(p); }

struct Parts {
  const float* sums;  // (B, parts, stride)
  float* out;         // (B, stride)
  i64 stride;
  i64 size;           // of a gradient: what is behind it, up to the next one, is nothing
  int mu;
  int parts;
};

KERNEL(sum_parts, Parts, 128, 0) {
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x;
  if (i >= p.size) return;
  const float total = tree_of(p.sums + (i64)blockIdx.z * p.parts * p.stride + i, p.stride, p.parts);
  p.out[blockIdx.z * p.stride + i] = mean_of(total, p.mu);
}
